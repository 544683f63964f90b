//! Unmaps memory that a waiting process does not need.

/// Returns free memory of the heap and of the stack to the kernel, and unmaps the pages of this program's code and constants; the next use
/// brings those back from the page cache.
///
/// A supervisor that sleeps for hours would count as large only because of code that will not run again, and of the memory
/// that the command line took.
pub fn drop_unneeded_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer; the allocator locks itself.
    unsafe {
        libc::malloc_trim(0)
    };
    drop_unused_stack();
    drop_text_pages();
}

/// Returns the pages of the stack that earlier, deeper calls have used.
#[inline(never)]
fn drop_unused_stack() {
    /// The frames of this function and of madvise(3).
    const FRAMES: usize = 4096;
    const DEPTH: usize = 256 * 1024;
    /// The kernel keeps at least 128 MiB free below the stack of a program's first thread: `mmap_base` in mm/util.c.
    const OWN: usize = 64 * 1024 * 1024;
    let marker = 0_u8;
    let here = std::hint::black_box(&raw const marker).addr();
    // SAFETY: reads the auxiliary vector.
    let top = usize::try_from(unsafe { libc::getauxval(libc::AT_RANDOM) }).unwrap_or(0);
    // Another thread, or a fork of one, has its stack among other mappings.
    if top.checked_sub(here).is_none_or(|used| used > OWN) {
        return;
    }
    let end = here.saturating_sub(FRAMES) & !4095;
    let start = std::ptr::with_exposed_provenance_mut(end.saturating_sub(DEPTH));
    // SAFETY: below this frame the stack of the only thread that uses it holds nothing that lives. Where the stack does not reach so
    // deep, nothing is mapped, and the kernel passes over the gap.
    unsafe { libc::madvise(start, DEPTH, libc::MADV_DONTNEED) };
}

/// Only segments that are mapped read-only are dropped: no process can have written to them.
fn drop_text_pages() {
    let Some(headers) = headers() else { return };
    let bias = headers
        .iter()
        .find(|header| header.p_type == libc::PT_PHDR)
        .map_or(0, |own| address(headers.as_ptr().cast()).wrapping_sub(own.p_vaddr));
    let relro = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
    {
        let within = relro.is_some_and(|relro| {
            relro.p_vaddr < header.p_vaddr + header.p_memsz && header.p_vaddr < relro.p_vaddr + relro.p_memsz
        });
        if within {
            continue;
        }
        let start = (header.p_vaddr.wrapping_add(bias)) & !PAGE_MASK;
        let end = header.p_vaddr.wrapping_add(bias).wrapping_add(header.p_memsz);
        let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(end.wrapping_sub(start)))
        else {
            continue;
        };
        // SAFETY: the range is a read-only file mapping of this program: its pages hold what the file holds, and come
        // back at the next access.
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start), length, libc::MADV_DONTNEED) };
    }
}

const PAGE_MASK: u64 = 4095;

fn address(pointer: *const u8) -> u64 {
    u64::try_from(pointer.addr()).unwrap_or(0)
}

/// Returns the program headers of this program, which the auxiliary vector locates.
fn headers() -> Option<&'static [libc::Elf64_Phdr]> {
    // SAFETY: reads the auxiliary vector.
    let at = unsafe { libc::getauxval(libc::AT_PHDR) };
    // SAFETY: as above.
    let count = unsafe { libc::getauxval(libc::AT_PHNUM) };
    let (at, count) = (usize::try_from(at).ok()?, usize::try_from(count).ok()?);
    if at == 0 {
        return None;
    }
    // SAFETY: the kernel says that `count` headers are mapped at `at`. They are part of the program, live as long as
    // the process, and nobody writes to them.
    Some(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), count) })
}
