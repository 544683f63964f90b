//! The permissions of a file as text, as the reference writes them: a letter for each property, and nine for the rights.

use rustix::fs::FileType;

/// Writes the type and the permissions of a mode: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`, `dtrwxrwxrwx`.
pub(super) fn permission_text(mode: u32) -> String {
    let mut text = String::with_capacity(12);
    text.push_str(match FileType::from_raw_mode(mode) {
        FileType::Directory => "d",
        FileType::Symlink => "L",
        FileType::BlockDevice => "D",
        FileType::CharacterDevice => "Dc",
        FileType::Fifo => "p",
        FileType::Socket => "S",
        _ => "",
    });
    let special = [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')];
    text.extend(special.into_iter().filter(|(bit, _)| mode & bit != 0).map(|(_, letter)| letter));
    if text.is_empty() {
        text.push('-');
    }
    for (place, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> place) != 0 { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_the_reference_does() {
        for (mode, text) in [
            (0o100_644, "-rw-r--r--"),
            (0o100_000, "----------"),
            (0o40_755, "drwxr-xr-x"),
            (0o41_777, "dtrwxrwxrwx"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o102_755, "grwxr-xr-x"),
            (0o20_666, "Dcrw-rw-rw-"),
            (0o60_660, "Drw-rw----"),
            (0o10_600, "prw-------"),
            (0o140_777, "Srwxrwxrwx"),
        ] {
            assert_eq!(permission_text(mode), text);
        }
    }
}
