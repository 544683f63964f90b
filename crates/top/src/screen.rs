//! The terminal as the view has it, and as the caller had it.

use std::io::{self, Stdout, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::queue;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// Whether the terminal is the view's now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal on standard output.
pub(crate) type Screen = Terminal<CrosstermBackend<Stdout>>;

/// Takes the terminal. Dropping the value gives it back.
#[derive(Debug)]
pub(crate) struct Taken;

impl Taken {
    pub(crate) fn take() -> io::Result<(Taken, Screen)> {
        let screen = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let taken = Taken;
        take_again()?;
        Ok((taken, screen))
    }
}

/// Takes the terminal once more after [`restore_terminal`].
pub(crate) fn take_again() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    let mut stdout = io::stdout();
    queue!(stdout, EnterAlternateScreen)?;
    stdout.flush()
}

impl Drop for Taken {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Gives the terminal back as the caller had it; does nothing if the view does not have it.
///
/// The binary calls this in its hook for panics too.
pub fn restore_terminal() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // A terminal that has gone takes neither.
    let mut stdout = io::stdout();
    let _ = queue!(stdout, LeaveAlternateScreen, Show).and_then(|()| stdout.flush());
    let _ = disable_raw_mode();
}
