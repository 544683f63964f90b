//! Full disks, damaged and foreign files: a log never blocks, fails or misleads.

use penfold_testkit::skip;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};

use crate::log_support::{Place, Read};
use penfold_state::log::{LogError, LogPosition, LogReader, LogWriter, Stream, USUAL_LIMIT};
use proptest::prelude::*;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Makes a tmpfs of this size without a mount point: it is gone when its descriptor is closed.
fn tmpfs(size: &str) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "size", size)?;
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn fill(dir: &OwnedFd) -> OwnedFd {
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, "filler", flags, rustix::fs::Mode::RUSR).unwrap();
    while rustix::io::write(&file, &[0; 4096]).is_ok_and(|written| written > 0) {}
    file
}

/// spec: 9.3
#[test]
fn a_full_disk_blocks_nobody_and_what_is_lost_is_counted() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may mount a small file system");
    }
    let dir = tmpfs("256k").unwrap();
    let mut writer = LogWriter::create(dir.as_fd(), USUAL_LIMIT).unwrap();
    writer.append(Stream::Stdout, b"before\n");
    let filler = fill(&dir);
    let mut given = 0;
    for _ in 0..100 {
        writer.append(Stream::Stdout, &[b'x'; 10_000]);
        given += 10_000;
    }
    let mut reader = LogReader::open(dir.as_fd(), LogPosition::Start).unwrap();
    let mut read = Read::to_end(&mut reader);
    assert!(writer.lost() > 0 && reader.lost() == writer.lost());
    rustix::fs::ftruncate(&filler, 0).unwrap();
    writer.append(Stream::Stdout, b"after\n");
    while read.take(&mut reader) {}
    assert_eq!(writer.lost(), 0);
    assert!(read.all.starts_with(b"before\n") && read.all.ends_with(b"after\n"));
    assert_eq!(read.lost + u64::try_from(read.all.len()).unwrap() - 13, given);
    assert_eq!((read.missed, read.damaged), (0, 0));
}

#[test]
fn a_disk_that_is_full_from_the_first_byte_has_no_log() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may mount a small file system");
    }
    let dir = tmpfs("64k").unwrap();
    let _filler = fill(&dir);
    assert!(matches!(LogWriter::create(dir.as_fd(), USUAL_LIMIT), Err(LogError::Io { .. })));
    assert!(matches!(LogReader::open(dir.as_fd(), LogPosition::Start), Err(LogError::Missing)));
}

/// spec: 9.2
#[test]
fn a_ring_that_is_full_grown_needs_no_more_room() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may mount a small file system");
    }
    let dir = tmpfs("256k").unwrap();
    let mut writer = LogWriter::create(dir.as_fd(), 64 << 10).unwrap();
    for _ in 0..100 {
        writer.append(Stream::Stdout, &[b'x'; 1000]);
    }
    let _filler = fill(&dir);
    for _ in 0..1000 {
        writer.append(Stream::Stdout, &[b'y'; 1000]);
    }
    assert_eq!(writer.lost(), 0);
    let read = Read::to_end(&mut LogReader::open(dir.as_fd(), LogPosition::Start).unwrap());
    assert!(read.all.len() > 40_000 && read.all.iter().all(|&byte| byte == b'y') && read.lost == 0);
}

/// spec: 9.5
#[test]
fn links_directories_fifos_and_strangers_are_refused() {
    let place = Place::new();
    let other = Place::new();
    drop(LogWriter::create(other.as_fd(), 0).unwrap());
    let refused = || LogReader::open(place.as_fd(), LogPosition::Start).map(drop);
    symlink(other.log(), place.log()).unwrap();
    assert!(matches!(refused(), Err(LogError::Damaged(_))));
    std::fs::remove_file(place.log()).unwrap();
    std::fs::create_dir(place.log()).unwrap();
    assert!(matches!(refused(), Err(LogError::Damaged(_))));
    std::fs::remove_dir(place.log()).unwrap();
    rustix::fs::mknodat(&place, "log", rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert!(matches!(refused(), Err(LogError::Damaged(_))));
    std::fs::remove_file(place.log()).unwrap();
    if !rustix::process::geteuid().is_root() {
        return skip("only root may give a file away");
    }
    drop(LogWriter::create(place.as_fd(), 0).unwrap());
    std::os::unix::fs::chown(place.log(), Some(65_534), None).unwrap();
    assert!(matches!(refused(), Err(LogError::Stranger { owner: 65_534, .. })));
    assert!(matches!(LogWriter::reopen(place.as_fd(), 0), Err(LogError::Stranger { .. })));
}

/// spec: 9.5
#[test]
fn a_newer_format_is_left_alone_and_garbage_is_replaced() {
    let place = Place::new();
    let mut launcher = b"penfold log\n\x02\0\0\0".to_vec();
    launcher.resize(5000, 0);
    std::fs::write(place.log(), &launcher).unwrap();
    assert!(matches!(LogReader::open(place.as_fd(), LogPosition::Start), Err(LogError::Newer)));
    assert!(matches!(LogWriter::reopen(place.as_fd(), 0), Err(LogError::Newer)));
    assert_eq!(std::fs::read(place.log()).unwrap(), launcher);
    for garbage in [&b"penfold"[..], &[0; 5000], &[0xff; 5000]] {
        std::fs::write(place.log(), garbage).unwrap();
        assert!(matches!(LogReader::open(place.as_fd(), LogPosition::Start), Err(LogError::Damaged(_))));
        LogWriter::reopen(place.as_fd(), 0).unwrap().append(Stream::Stdout, b"anew");
        assert_eq!(place.text(LogPosition::Start), "anew");
    }
}

/// spec: 9.5
#[test]
fn a_damaged_block_is_named_and_the_next_one_read() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
    for number in 0..1000 {
        writer.append(Stream::Stdout, format!("{number:15}\n").as_bytes());
    }
    let file = std::fs::OpenOptions::new().write(true).open(place.log()).unwrap();
    // The position is in the second block, at the head of a frame.
    file.write_all_at(&[0xff; 16], 4096 + 4096 + 320).unwrap();
    let read = Read::to_end(&mut place.read(LogPosition::Start));
    assert_eq!(read.damaged, 4096 - 320);
    assert!(read.all.ends_with(format!("{:15}\n", 999).as_bytes()));
    assert_eq!(u64::try_from(read.all.len()).unwrap(), 16_000 - (4096 - 320) / 32 * 16);
    // A truncated log continues where it is whole again.
    file.set_len(4096 + 100).unwrap();
    let read = Read::to_end(&mut place.read(LogPosition::Start));
    assert!(read.damaged > 30_000 && read.all.starts_with(format!("{:15}\n", 0).as_bytes()));
    writer.append(Stream::Stdout, &[b'o'; 5000]);
    assert!(Read::to_end(&mut place.read(LogPosition::Start)).all.ends_with(b"ooo"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// spec: 9.5
    #[test]
    fn garbage_ends_every_reader_and_writer(
        damage in prop::collection::vec(
            (0_u64..70_000, prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 1..40)),
            1..40,
        ),
        cut in prop::option::of(0_u64..70_000),
        offset in any::<u64>(),
    ) {
        let place = Place::new();
        let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
        for length in 1..500 {
            writer.append(Stream::Stderr, &[b'\n'; 500][..length]);
        }
        drop(writer);
        let mut file = std::fs::OpenOptions::new().write(true).open(place.log()).unwrap();
        for (at, bytes) in &damage {
            file.write_all_at(bytes, *at).unwrap();
        }
        if let Some(cut) = cut {
            file.set_len(cut).unwrap();
        }
        file.flush().unwrap();
        let begins =
            [LogPosition::Start, LogPosition::Offset(offset), LogPosition::Last { lines: offset, of: None }, LogPosition::Since(offset)];
        for from in begins {
            if let Ok(mut reader) = LogReader::open(place.as_fd(), from) {
                // Each piece is a step forward in a ring of 15 blocks.
                prop_assert!(Read::to_end(&mut reader).all.len() <= 64 << 10);
            }
        }
        if let Ok(mut writer) = LogWriter::reopen(place.as_fd(), 64 << 10) {
            writer.append(Stream::Stdout, b"the end");
            let read = Read::to_end(&mut place.read(LogPosition::Start));
            prop_assert!(read.all.ends_with(b"the end"), "{} {}", read.damaged, read.missed);
        }
    }

    /// spec: 9.5
    #[test]
    fn a_mark_of_anywhere_ends_every_reader(end in any::<u64>(), lost in any::<u64>(), shift in 0_u32..64) {
        let end = end >> shift;
        let place = Place::new();
        let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
        writer.append(Stream::Stdout, b"one\n");
        let mut early = place.read(LogPosition::Start);
        let mut mark = Vec::new();
        let check = end ^ lost.rotate_left(32) ^ 0x7065_6e66_6f6c_6421;
        for number in [end, lost, check] {
            mark.extend_from_slice(&number.to_le_bytes());
        }
        std::fs::OpenOptions::new().write(true).open(place.log()).unwrap().write_all_at(&mark, 64).unwrap();
        let mut read = Read::default();
        while let Ok(Some(_)) = early.next_entry() {}
        if let Ok(mut reader) = LogReader::open(place.as_fd(), LogPosition::Start) {
            while read.take(&mut reader) {}
            prop_assert!(read.all.len() <= 4);
        }
        let mut writer = LogWriter::reopen(place.as_fd(), 0).unwrap();
        writer.append(Stream::Stdout, b"the end");
        prop_assert!(place.text(LogPosition::Start).ends_with("the end"));
    }
}
