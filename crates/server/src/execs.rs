//! Execs, as every dialect needs them: a dialect says on its wire what this module has done and observed.
//!
//! - [`find_exec`], [`FoundExec`], [`ObservedEnd`] — looks.
//! - [`make_room`], [`input_file`], [`discard_exec`] — around the start, which is [`penfold_control::execs::start_exec`].
//! - [`write_input`] — the input of a running command.
//! - [`end_exec`], [`ExecEndOrder`] — stop and kill.
//! - [`Followers`] — the open streams of execs, which an end completes.

mod end;
mod followers;
mod input;
mod look;
mod start;

pub use end::{EndExecError, ExecEndOrder, ExecEnding, end_exec};
pub use followers::{Followed, Follower, Followers};
pub use input::{WriteInputError, write_input};
pub use look::{FindExecError, FoundExec, ObservedEnd, find_exec};
pub use start::{discard_exec, input_file, make_room};
