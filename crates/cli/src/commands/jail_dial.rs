//! `penfold jail-dial`: connects to a port from inside the network namespace of a jail, and hands over the socket. `penfold serve` starts
//! it; users do not.

use std::io;
use std::os::fd::AsFd as _;

use clap::Args;
use penfold_server::{JAIL_DIAL, dial};
use penfold_state::wire::send_with;

use crate::args::usage;
use crate::args::verb::{Places, Verb};
use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};

/// The verb `jail-dial`.
pub(crate) const VERB: Verb = Verb {
    name: JAIL_DIAL,
    aliases: &[],
    about: "Connect to a port of a jail",
    description: "Enters the network namespace on standard input, connects to a port there, and sends the socket over the Unix socket on standard output.",
    examples: &[
        ("penfold jail-dial 3000", "connect to port 3000"),
        ("penfold jail-dial 8080 < /proc/PID/ns/net", "connect to port 8080"),
    ],
    usage_failure: FailureKind::Usage,
    define: DialArgs::augment_args,
    places: Places::Here,
    call: |_, matches| run(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct DialArgs {
    /// The port.
    #[arg(value_name = "PORT")]
    port: u16,
}

fn run(args: &DialArgs) -> Result<u8, Failure> {
    let output = io::stdout();
    let entered = penfold_sys::namespace::enter_network(io::stdin().as_fd());
    let sent = match entered.and_then(|()| dial(args.port)) {
        Ok(socket) => send_with(output.as_fd(), &0, &[socket.as_fd()]),
        Err(error) => send_with(
            output.as_fd(),
            &error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()),
            &[],
        ),
    };
    sent.or_fail(FailureKind::Other, "cannot send the socket")?;
    Ok(exit_codes::SUCCESS)
}
