//! Answers with the content of a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::time::UNIX_EPOCH;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use penfold_server::files::{byte_range, send_range};
use penfold_server::sent_body::{self, Sink};
use penfold_state::time::gregorian_date;

use super::{admit, file_error};
use crate::access::FileRight;
use crate::api::ApiState;
use crate::error::ApiError;
use crate::guest::Guest;
use crate::inside::{Inside, name_of};
use crate::signed::FileQuery;

/// The bytes that are read at one time, if the size of the file is unknown.
const PART: usize = 64 << 10;

/// A file that is open.
struct Opened {
    path: String,
    file: File,
    /// The size; 0 also for files whose size the kernel does not know, as those in `/proc`.
    size: u64,
    /// The time of its last change, as HTTP has it.
    modified: Option<HeaderValue>,
}

/// What of a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    /// The first offset, and the one after the last.
    Part(u64, u64),
    /// No byte of the range is in the file.
    Nothing,
    /// The client has it already.
    Unchanged,
}

/// Answers with a file, or the part that `Range` names.
pub(super) async fn read(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Query(query): Query<FileQuery>,
) -> Result<Response, ApiError> {
    let guest = admit(&api, &query, guest, FileRight::Read).await?;
    let is_packed = wants_gzip(&headers)?;
    let path = query.path.unwrap_or_default();
    let opened = api.call(move |_| open(&guest, &path)).await?;
    match wanted(&headers, &opened) {
        Wanted::Unchanged => {
            let mut answer = StatusCode::NOT_MODIFIED.into_response();
            answer.headers_mut().extend(opened.modified.map(|time| (header::LAST_MODIFIED, time)));
            Ok(answer)
        }
        Wanted::Nothing => {
            let message = format!("no byte of the range is in the file of {} bytes", opened.size);
            let mut answer = ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, message).into_response();
            answer
                .headers_mut()
                .extend(text_header(header::CONTENT_RANGE, &format!("bytes */{}", opened.size)));
            Ok(answer)
        }
        Wanted::All => send(&api, opened, None, is_packed),
        Wanted::Part(begin, end) => send(&api, opened, Some((begin, end)), false),
    }
}

fn open(guest: &Guest, text: &str) -> Result<Opened, ApiError> {
    let failed = |error| file_error(text, &error);
    let inside = Inside::of(guest).map_err(failed)?;
    let path = inside.path(text).map_err(failed)?;
    let opened = inside.workspace.open_plain(&path);
    let (file, size) = opened.map_err(|error| file_error(&path, &error))?;
    let time = file.metadata().and_then(|metadata| metadata.modified()).ok();
    let seconds = time.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs()));
    let modified = seconds.and_then(|seconds| HeaderValue::from_str(&http_date(seconds)).ok());
    Ok(Opened { path, file, size, modified })
}

/// Tells whether the answer is to be compressed: only if the client asks for gzip and for nothing else. Others take gzip as well, but
/// on one host it is slower than the bytes.
///
/// # Errors
/// When the client takes neither gzip nor the bytes.
fn wants_gzip(headers: &HeaderMap) -> Result<bool, ApiError> {
    let given = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let codings: Vec<(String, bool)> = given.flat_map(|text| text.split(',')).filter_map(coding).collect();
    let takes = |name: &str| codings.iter().find(|(given, _)| given == name).map(|(_, takes)| *takes);
    let takes_gzip = takes("gzip").or(takes("*")) == Some(true);
    let takes_bytes = takes("identity").or(takes("*").filter(|takes| !takes)) != Some(false);
    if !takes_bytes && !takes_gzip {
        let message = "no acceptable encoding found, supported: [identity, gzip]";
        return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let is_alone = codings.iter().all(|(name, takes)| name == "gzip" || !takes);
    Ok(takes_gzip && (is_alone || !takes_bytes))
}

/// Reads a coding of `Accept-Encoding`, and whether the client takes it.
fn coding(text: &str) -> Option<(String, bool)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?.to_ascii_lowercase();
    let weight = parts.find_map(|part| part.strip_prefix("q=")).and_then(|weight| weight.parse::<f32>().ok());
    Some((name, weight.is_none_or(|weight| weight > 0.0)))
}

/// Returns what a client wants of a file. More than one range is answered with the whole file.
fn wanted(headers: &HeaderMap, opened: &Opened) -> Wanted {
    let modified = opened.modified.as_ref();
    // Clients send the time back as they got it.
    let is_same = |name| headers.get(name).is_some_and(|given| Some(given) == modified);
    if is_same(header::IF_MODIFIED_SINCE) {
        return Wanted::Unchanged;
    }
    let is_outdated = headers.contains_key(header::IF_RANGE) && !is_same(header::IF_RANGE);
    let text = headers.get(header::RANGE).and_then(|value| value.to_str().ok()).filter(|_| !is_outdated);
    let Some(text) = text.filter(|text| text.to_ascii_lowercase().starts_with("bytes=")) else {
        return Wanted::All;
    };
    if text.contains(',') || opened.size == 0 {
        return Wanted::All;
    }
    byte_range(text, opened.size).map_or(Wanted::Nothing, |(begin, end)| Wanted::Part(begin, end))
}

/// Sends a file, or a part of it.
fn send(
    api: &ApiState,
    opened: Opened,
    part: Option<(u64, u64)>,
    is_packed: bool,
) -> Result<Response, ApiError> {
    let too_many = || ApiError::too_many("this server has as many open streams as it can have");
    let Opened { path, file, size, modified } = opened;
    let (begin, end) = part.unwrap_or((0, size));
    let permit = api.app.engine.follower().ok_or_else(too_many)?;
    let body = sent_body::written_body(move |sink| {
        let _permit = permit;
        if is_packed {
            pack(&file, sink)
        } else if size == 0 {
            send_all(&file, sink)
        } else {
            send_range(&file, begin, end, sink)
        }
    });
    let body = body.map_err(|_| too_many())?;
    let mut answer = body.into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.extend(text_header(header::CONTENT_DISPOSITION, &disposition(name_of(&path))));
    headers.extend(modified.map(|time| (header::LAST_MODIFIED, time)));
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return Ok(answer);
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if size > 0 {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - begin));
    }
    if part.is_some() {
        let text = format!("bytes {begin}-{}/{size}", end.saturating_sub(1));
        headers.extend(text_header(header::CONTENT_RANGE, &text));
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(answer)
}

/// Sends a file to its end.
fn send_all(mut file: &File, sink: &mut Sink) -> io::Result<()> {
    let mut buffer = vec![0; PART];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        sink.write(buffer.get(..length).unwrap_or_default())?;
    }
}

/// Sends a file to its end, compressed.
fn pack(mut file: &File, sink: &mut Sink) -> io::Result<()> {
    let mut packer = GzEncoder::new(sink, Compression::fast());
    let mut buffer = vec![0; PART];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return packer.finish().map(drop);
        }
        packer.write_all(buffer.get(..length).unwrap_or_default())?;
    }
}

fn text_header(name: header::HeaderName, text: &str) -> Option<(header::HeaderName, HeaderValue)> {
    HeaderValue::from_str(text).ok().map(|value| (name, value))
}

/// The name under which a browser keeps the file.
fn disposition(name: &str) -> String {
    let mut text = "inline; filename*=UTF-8''".to_owned();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = fmt::Write::write_fmt(&mut text, format_args!("%{byte:02X}"));
        }
    }
    text
}

/// Formats seconds since 1970 as HTTP does: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = gregorian_date(i64::try_from(days).unwrap_or(0));
    let place = |number: i64| usize::try_from(number).unwrap_or(0);
    let weekday = usize::try_from(days % 7).ok().and_then(|day| DAYS.get(day)).unwrap_or(&"Thu");
    let month = MONTHS.get(place(month - 1)).unwrap_or(&"Jan");
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn wanted_of(pairs: &[(&'static str, &'static str)], size: u64) -> Wanted {
        let file = File::open("/dev/null").unwrap();
        let modified = Some(HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
        wanted(&headers(pairs), &Opened { path: "/a".to_owned(), file, size, modified })
    }

    #[test]
    fn a_range_is_a_part_of_the_file() {
        let of = |range| wanted_of(&[("range", range)], 10);
        assert_eq!(wanted_of(&[], 10), Wanted::All);
        assert_eq!(of("bytes=0-3"), Wanted::Part(0, 4));
        assert_eq!(of("bytes=-3"), Wanted::Part(7, 10));
        assert_eq!(of("bytes=8-"), Wanted::Part(8, 10));
        assert_eq!(of("bytes=10-"), Wanted::Nothing);
        assert_eq!(of("bytes=0-1,4-5"), Wanted::All);
        assert_eq!(of("lines=0-1"), Wanted::All);
        assert_eq!(wanted_of(&[("range", "bytes=0-")], 0), Wanted::All);
    }

    #[test]
    fn a_client_that_has_the_file_gets_it_only_if_it_changed() {
        let (same, other) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(wanted_of(&[("if-modified-since", same)], 10), Wanted::Unchanged);
        assert_eq!(wanted_of(&[("if-modified-since", other)], 10), Wanted::All);
        assert_eq!(wanted_of(&[("range", "bytes=1-1"), ("if-range", same)], 10), Wanted::Part(1, 2));
        assert_eq!(wanted_of(&[("range", "bytes=1-1"), ("if-range", other)], 10), Wanted::All);
    }

    #[test]
    fn only_those_who_want_nothing_else_get_gzip() {
        let of = |text| wants_gzip(&headers(&[("accept-encoding", text)])).ok();
        for (text, answer) in [
            ("gzip", Some(true)),
            ("GZIP;q=0.5", Some(true)),
            ("gzip, deflate, br", Some(false)),
            ("gzip, identity;q=0", Some(true)),
            ("identity", Some(false)),
            ("br", Some(false)),
            ("", Some(false)),
            ("*", Some(false)),
            ("gzip;q=0", Some(false)),
            ("identity;q=0", None),
            ("*;q=0", None),
            ("br, *;q=0", None),
        ] {
            assert_eq!(of(text), answer, "{text}");
        }
        assert!(!wants_gzip(&HeaderMap::new()).unwrap());
    }

    #[test]
    fn times_are_written_as_http_does() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(951_827_696), "Tue, 29 Feb 2000 12:34:56 GMT");
    }

    #[test]
    fn a_name_in_a_header_has_no_signs() {
        assert_eq!(disposition("a b\"\n\u{e4}.txt"), "inline; filename*=UTF-8''a%20b%22%0A%C3%A4.txt");
    }
}
