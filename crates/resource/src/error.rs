//! The errors of resources.

use std::io;

/// A resource could not be checked, created, looked at or released.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// The request of the user has a mistake.
    #[error(transparent)]
    Request(#[from] crate::mistake::Mistake),
    /// Before the start: there is something of this name, path or address.
    #[error("{resource} exists already; choose another name or remove it first")]
    Taken {
        /// What exists.
        resource: String,
    },
    /// Something of this name exists and is not the sandbox's, so it stays.
    #[error("{resource} stays, because it is not this sandbox's: {why}")]
    Foreign {
        /// The resource.
        resource: String,
        /// The evidence.
        why: String,
    },
    /// A step failed.
    #[error("cannot {attempt}{}", .help.map(|help| format!(" ({help})")).unwrap_or_default())]
    Io {
        /// The step and its object.
        attempt: String,
        /// What would help.
        help: Option<&'static str>,
        /// The answer of the kernel.
        source: io::Error,
    },
    /// The resource is still there at the deadline.
    #[error("{resource} is not gone: {}", held(.held_by))]
    Held {
        /// The resource.
        resource: String,
        /// The processes and mounts that hold it, as far as they can be seen.
        held_by: Vec<String>,
    },
    /// A mount was detached, because no holder that could be waited for was found.
    #[error(
        "{resource} was detached while something that is no process held it; the kernel removes it later"
    )]
    Detached {
        /// The resource.
        resource: String,
    },
    /// A directory could not be emptied.
    #[error("cannot remove `{path}`: {}", held(.held_by))]
    Remains {
        /// The first entry that could not be removed.
        path: String,
        /// The processes that hold something in the directory.
        held_by: Vec<String>,
        /// The answer of the kernel.
        source: io::Error,
    },
    /// The resource is in a namespace that this process is not in.
    #[error(
        "cannot see {resource} from this {namespace} namespace; run this command where the sandbox was started"
    )]
    Elsewhere {
        /// The resource.
        resource: String,
        /// The type of the namespace.
        namespace: &'static str,
    },
    /// A program that is needed is not installed.
    #[error("cannot find the program `{program}`; install the package that has it")]
    NoProgram {
        /// The name of the program.
        program: &'static str,
    },
    /// A program that was started failed.
    #[error("`{command}` failed: {message}")]
    Program {
        /// The command line.
        command: String,
        /// The last words of the program.
        message: String,
    },
}

fn held(by: &[String]) -> String {
    if by.is_empty() {
        "no process that holds it was found".to_owned()
    } else {
        format!("held by {}", by.join(", "))
    }
}

/// Makes an error of a failed step: `.map_err(failed(|| format!("mount `{target}`")))`.
pub(crate) fn failed_step<E: Into<io::Error>>(
    attempt: impl FnOnce() -> String,
) -> impl FnOnce(E) -> ResourceError {
    move |source| {
        let source = source.into();
        ResourceError::Io { attempt: attempt(), help: help(&source), source }
    }
}

fn help(source: &io::Error) -> Option<&'static str> {
    use rustix::io::Errno;
    match Errno::from_io_error(source)? {
        Errno::PERM | Errno::ACCESS => Some("this needs root"),
        Errno::NODEV => Some("the kernel lacks this kind of file system or device"),
        Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT => {
            Some("the kernel lacks support for this")
        }
        Errno::DEADLK => Some("only a process with one thread can do this"),
        _ => None,
    }
}
