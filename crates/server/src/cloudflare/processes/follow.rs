//! Streams of a process: what it wrote and writes, and its end.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use axum::response::Response;
use penfold_control::execs;
use penfold_state::Files;
use penfold_state::log::{Entry, From, LogError, Reader, Stream, Waited};
use rustix::event::Timespec;
use serde_json::{Value, json};

use crate::cloudflare::api::ApiState;
use crate::cloudflare::error::ApiError;
use crate::cloudflare::followers::Follower;
use crate::cloudflare::sse;
use crate::json_body::Utf8;
use crate::sent_body::{self, Sink};

use super::status::{self, Told};

/// The time for the last event of a stream that breaks off.
const FLUSH: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A stream that is to be sent.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) files: Files,
    pub(super) number: u32,
    /// Keeps the record until the stream has its end.
    pub(super) held: Option<OwnedFd>,
    /// The first event.
    pub(super) first: (&'static str, Value),
    /// Fields of each further event.
    pub(super) common: Value,
    pub(super) last: fn(Told) -> (&'static str, Value),
}

/// Answers with a stream that ends after the end of the process.
///
/// # Errors
/// When there are as many streams as there can be, or there is no room for a thread.
pub(super) fn answer(api: &ApiState, following: Following) -> Result<Response, ApiError> {
    let place = api.app.engine.follower().ok_or_else(ApiError::too_many_streams)?;
    let followed = (following.files.name().to_owned(), following.number);
    let theirs = std::sync::Arc::clone(api);
    let made = sent_body::followed_body(move |sink| {
        let _place = place;
        following.write(sink, &|| theirs.app.drain.has_begun())
    });
    let (body, wake, open) = made.map_err(|error| ApiError::full(&error))?;
    api.followers.add(followed, Follower { wake, open });
    Ok(sse::stream(body))
}

impl Following {
    /// Writes the stream. The returned reader is to be dropped late: the kernel takes about 15 ms to close its inotify
    /// descriptor, and the end must not wait for that.
    fn write(mut self, sink: &mut Sink, is_draining: &dyn Fn() -> bool) -> io::Result<Option<Reader>> {
        let _held = self.held.take();
        let (kind, fields) = self.first.clone();
        sse::send(sink, kind, fields)?;
        let mut kept = None;
        let told = match execs::log(&self.files, self.number, From::Start) {
            Ok(reader) => {
                // What was overwritten before this follower came.
                if reader.offset() > 0 {
                    sse::send(sink, "lagged", self.event(json!({ "bytes": reader.offset() })))?;
                }
                let Some(told) = self.copy(sink, kept.insert(reader), is_draining)? else {
                    // The stream is not complete, and must not look so.
                    let error = json!({ "error": "the server is ending; the process goes on" });
                    sse::send(sink, "error", self.event(error))?;
                    // A reset would overtake the event.
                    let _ = rustix::event::poll(&mut [], Some(&FLUSH));
                    return Err(io::ErrorKind::Interrupted.into());
                };
                told
            }
            Err(LogError::Missing) => self.end().ok_or(io::ErrorKind::NotFound)?,
            Err(error) => return Err(io::Error::other(error)),
        };
        let (kind, fields) = (self.last)(told);
        sse::send(sink, kind, self.event(fields))?;
        Ok(kept)
    }

    /// Returns the end of the process, if it is verified.
    fn end(&self) -> Option<Told> {
        if !execs::has_ended(&self.files, self.number) {
            return None;
        }
        match execs::get(&self.files, self.number) {
            Ok(Some(view)) => Some(status::told(&view)).filter(|told| told.code.is_some()),
            Ok(None) => Some(status::deleted()),
            Err(_) => None,
        }
    }

    /// Copies the output until the process has ended, and returns the end; `None` if the server ends before.
    ///
    /// An end that was seen stays: while the record of its sandbox is removed, it cannot be observed any more.
    fn copy(
        &self,
        sink: &mut Sink,
        reader: &mut Reader,
        is_draining: &dyn Fn() -> bool,
    ) -> io::Result<Option<Told>> {
        let mut decoders = [Utf8::default(), Utf8::default()];
        let mut peer = sink.wake.take();
        let told = loop {
            self.copy_new(sink, reader, &mut decoders)?;
            let mut end = None;
            let ended = || {
                end = self.end();
                end.is_some() || is_draining()
            };
            match reader.wait(ended, peer.as_ref().map(|peer| peer.as_fd())).map_err(io::Error::other)? {
                Waited::More => {}
                Waited::Ended => match end {
                    Some(told) => break told,
                    None => return Ok(None),
                },
                Waited::HungUp if sink.is_closed() => return Err(io::ErrorKind::BrokenPipe.into()),
                // A kill is over.
                Waited::HungUp => peer = None,
            }
        };
        for (stream, decoder) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&mut decoders) {
            let mut text = String::new();
            decoder.end(&mut text);
            self.output(sink, stream, &text)?;
        }
        Ok(Some(told))
    }

    fn copy_new(&self, sink: &mut Sink, reader: &mut Reader, decoders: &mut [Utf8; 2]) -> io::Result<()> {
        while let Some(entry) = reader.next_entry().map_err(io::Error::other)? {
            match entry {
                Entry::Data { stream, bytes, .. } => {
                    let [stdout, stderr] = &mut *decoders;
                    let decoder = if stream == Stream::Stdout { stdout } else { stderr };
                    let mut text = String::new();
                    decoder.decode(bytes, &mut text);
                    self.output(sink, stream, &text)?;
                }
                Entry::Lost { bytes, .. } | Entry::Missed { bytes } | Entry::Damaged { bytes, .. } => {
                    sse::send(sink, "lagged", self.event(json!({ "bytes": bytes })))?;
                }
            }
        }
        Ok(())
    }

    fn output(&self, sink: &mut Sink, stream: Stream, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let kind = if stream == Stream::Stdout { "stdout" } else { "stderr" };
        sse::send(sink, kind, self.event(json!({ "data": text })))
    }

    fn event(&self, mut fields: Value) -> Value {
        if let (Some(fields), Some(common)) = (fields.as_object_mut(), self.common.as_object()) {
            fields.extend(common.clone());
        }
        fields
    }
}
