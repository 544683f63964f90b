//! The name and the command line of this process, as ps(1) and pkill(1) see them.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The first byte of this program's arguments, and the length of all arguments with their NULs.
static ARGUMENTS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Records where the kernel has put the arguments.
///
/// # Safety
/// `count` and `words` are the values that the C library gave to `main`.
pub(crate) unsafe fn note_arguments(count: i32, words: *const *const u8) {
    let Ok(count) = usize::try_from(count) else { return };
    if words.is_null() {
        return;
    }
    // SAFETY: the caller says that `words` holds `count` pointers.
    let words = unsafe { std::slice::from_raw_parts(words, count) };
    let (Some(&first), Some(&last)) = (words.first(), words.last()) else { return };
    // SAFETY: each pointer is to a string that ends with a NUL.
    let length = unsafe { CStr::from_ptr(last.cast()) }.count_bytes() + 1;
    // The strings follow each other without a gap: `create_elf_tables` in fs/binfmt_elf.c.
    LENGTH.store(last.addr().wrapping_sub(first.addr()).wrapping_add(length), Ordering::Relaxed);
    ARGUMENTS.store(first.cast_mut(), Ordering::Relaxed);
}

/// Gives this process another name and another command line: proc(5), `/proc/<pid>/comm` and `/proc/<pid>/cmdline`. The
/// command line is the name and those `words` after it that fit as a whole.
///
/// The new command line overwrites the arguments, which cannot be read afterwards. A program that does not begin with
/// [`entry!`](crate::entry!) keeps its command line.
pub fn set_title(name: &CStr, words: &[&str]) {
    let _ = rustix::thread::set_name(name);
    let (start, length) = (ARGUMENTS.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
    if start.is_null() {
        return;
    }
    // SAFETY: `start` is the beginning of `length` writable bytes of the stack. Nothing in this program refers to them:
    // the standard library copies the arguments on each request.
    let arguments = unsafe { std::slice::from_raw_parts_mut(start, length) };
    write(arguments, name.to_bytes(), words);
}

/// Writes a command line. The kernel shows the bytes up to the first NUL only if the last byte is none: `get_mm_cmdline` in
/// fs/proc/base.c.
fn write(arguments: &mut [u8], name: &[u8], words: &[&str]) {
    let Some((last, room)) = arguments.split_last_mut() else { return };
    let Some((end, room)) = room.split_last_mut() else { return };
    *end = 0;
    room.fill(0);
    let mut used = 0;
    for (place, byte) in room.iter_mut().zip(name) {
        *place = *byte;
        used += 1;
    }
    for word in words {
        let Some(place) = room.get_mut(used..used + 1 + word.len()) else { break };
        let (space, place) = place.split_at_mut(1);
        space.fill(b' ');
        place.copy_from_slice(word.as_bytes());
        used += 1 + word.len();
    }
    *last = b' ';
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(room: usize, words: &[&str]) -> String {
        let mut arguments = vec![b'x'; room];
        write(&mut arguments, b"pf-supervisor", words);
        assert!(room == 0 || arguments[room - 1] != 0, "the kernel would show more");
        let end = arguments.iter().position(|byte| *byte == 0).unwrap_or(0);
        String::from_utf8(arguments[..end].to_vec()).unwrap()
    }

    #[test]
    fn a_word_is_shown_as_a_whole_or_not_at_all() {
        assert_eq!(shown(40, &["3f9a1c2b7d04", "web"]), "pf-supervisor 3f9a1c2b7d04 web");
        assert_eq!(shown(31, &["3f9a1c2b7d04", "web"]), "pf-supervisor 3f9a1c2b7d04");
        assert_eq!(shown(28, &["3f9a1c2b7d04", "web"]), "pf-supervisor 3f9a1c2b7d04");
        assert_eq!(shown(27, &["3f9a1c2b7d04", "web"]), "pf-supervisor");
        assert_eq!(shown(8, &["3f9a1c2b7d04"]), "pf-sup");
        assert_eq!(shown(1, &["3f9a1c2b7d04"]), "");
        assert_eq!(shown(0, &["3f9a1c2b7d04"]), "");
    }
}
