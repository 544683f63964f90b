//! The content of a file: its type, and whether it is text.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The bytes that are read at one time; a multiple of three, so that each part has a base64 text without padding.
pub(crate) const STEP: usize = 48 << 10;

/// An open regular file.
#[derive(Debug)]
pub(crate) struct Content {
    file: File,
    /// The size when the file was opened; 0 for files that the kernel makes on reading.
    pub(crate) size: u64,
    pub(crate) is_binary: bool,
    pub(crate) mime: &'static str,
}

impl Content {
    /// Opens a file and looks whether all of it is text.
    ///
    /// # Errors
    /// Those of open(2) and read(2); `EISDIR` for a directory, `EINVAL` for a FIFO, a socket or a device.
    pub(crate) fn open(path: &Path) -> io::Result<Content> {
        // A FIFO without a writer would wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        let has_text = !is_binary(&mut file)?;
        file.rewind()?;
        let mime = mime(path, has_text);
        // As in the reference, text in a file named `a.png` is no text. Other than there, content that is no text is never taken for text.
        let is_binary = !has_text || !is_text_type(mime);
        Ok(Content { file, size: u64::try_from(stat.st_size).unwrap_or(0), is_binary, mime })
    }

    /// Calls `each` with the content, in parts of [`STEP`] bytes but for the last. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of read(2) and of `each`.
    pub(crate) fn read(&mut self, each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
        read_steps(&mut self.file, each)
    }
}

fn read_steps(file: &mut File, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut buffer = vec![0; STEP];
    let mut total = 0;
    loop {
        let mut filled = 0;
        while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
            match file.read(room) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if filled == 0 {
            return Ok(total);
        }
        each(buffer.get(..filled).unwrap_or_default())?;
        total += u64::try_from(filled).unwrap_or(0);
    }
}

/// Tells whether a file has a NUL, or bytes that are not UTF-8.
fn is_binary(file: &mut File) -> io::Result<bool> {
    let mut begun: Vec<u8> = Vec::new();
    let mut is_binary = false;
    let stop = || io::Error::from(io::ErrorKind::InvalidData);
    let read = read_steps(file, |part| {
        let whole: Vec<u8>;
        let bytes = if begun.is_empty() {
            part
        } else {
            whole = [begun.as_slice(), part].concat();
            &whole
        };
        let rest = match std::str::from_utf8(bytes) {
            Ok(_) => Vec::new(),
            Err(error) if error.error_len().is_none() => {
                bytes.get(error.valid_up_to()..).unwrap_or_default().to_vec()
            }
            Err(_) => {
                is_binary = true;
                return Err(stop());
            }
        };
        is_binary = part.contains(&0);
        begun = rest;
        if is_binary { Err(stop()) } else { Ok(()) }
    });
    match read {
        Err(error) if !is_binary => Err(error),
        _ => Ok(is_binary || !begun.is_empty()),
    }
}

/// The type of a file by the end of its name, or else by its content.
fn mime(path: &Path, has_text: bool) -> &'static str {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let known = TYPES.iter().find(|(end, _)| end.eq_ignore_ascii_case(extension)).map(|(_, mime)| *mime);
    known.unwrap_or(if has_text { "text/plain" } else { "application/octet-stream" })
}

/// Tells whether the reference takes files of a type for text.
fn is_text_type(mime: &str) -> bool {
    const OTHERS: [&str; 4] = ["application/json", "application/xml", "application/yaml", "application/toml"];
    mime.starts_with("text/") || mime.ends_with("+xml") || OTHERS.contains(&mime)
}

const TYPES: [(&str, &str); 42] = [
    ("txt", "text/plain"),
    ("md", "text/markdown"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("js", "text/javascript"),
    ("mjs", "text/javascript"),
    ("ts", "text/x-typescript"),
    ("tsx", "text/x-typescript"),
    ("jsx", "text/javascript"),
    ("py", "text/x-python"),
    ("rs", "text/x-rust"),
    ("go", "text/x-go"),
    ("c", "text/x-c"),
    ("h", "text/x-c"),
    ("java", "text/x-java"),
    ("sh", "text/x-shellscript"),
    ("xml", "application/xml"),
    ("json", "application/json"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
    ("pdf", "application/pdf"),
    ("zip", "application/zip"),
    ("gz", "application/gzip"),
    ("tar", "application/x-tar"),
    ("wasm", "application/wasm"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("ico", "image/x-icon"),
    ("svg", "image/svg+xml"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("mp4", "video/mp4"),
    ("webm", "video/webm"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("ttf", "font/ttf"),
];
