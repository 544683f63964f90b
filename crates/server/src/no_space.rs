//! Recognises a full disk in the sentences of supervisors, session hosts and `penfold run`, which are only text.

use rustix::io::Errno;

/// Tells whether a sentence ends with, or contains, the system's error for a full disk or an exceeded quota.
pub fn is_no_space(sentence: &str) -> bool {
    let names = |errno: Errno| sentence.contains(&format!("(os error {})", errno.raw_os_error()));
    names(Errno::NOSPC) || names(Errno::DQUOT)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn errors_of_a_full_disk_are_recognised() {
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            assert!(is_no_space(&format!("cannot make the files of an exec: {error}; nothing runs")));
        }
        for errno in [Errno::MFILE, Errno::AGAIN, Errno::PERM] {
            assert!(!is_no_space(&io::Error::from_raw_os_error(errno.raw_os_error()).to_string()));
        }
    }
}
