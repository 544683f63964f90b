//! Writes events to an event log.

use std::io;

use rustix::net::SendFlags;
use serde::Serialize;

use super::sentence::{event_priority, event_sentence};
use super::store::{ends_a_line, write_line};
use super::{Event, EventKind, EventSubject};
use crate::event_log::{EventLog, connect_journald, open_file};
use crate::time::format_rfc3339;

/// Writes events, without waiting for a reader or for room.
///
/// # Errors
/// Events that were not written are lost.
pub(super) fn write_events(event_log: &EventLog, events: &[Event]) -> io::Result<()> {
    // The steps of a teardown are for those who ask for them, as with `penfold events`.
    let mut events =
        events.iter().filter(|event| !matches!(event.what, EventKind::TeardownStep { .. })).peekable();
    if events.peek().is_none() {
        return Ok(());
    }
    match event_log {
        EventLog::Journald => {
            let journald = connect_journald()?;
            for event in events {
                let datagram = datagram(&written(event)?)?;
                rustix::net::send(&journald, &datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
            }
        }
        EventLog::File(path) => {
            // Opened anew, so that a program that rotates logs may rename the file.
            let (file, size) = open_file(path)?;
            // The previous writer may have had no room for its whole line.
            let mut line = if ends_a_line(&file, size) { Vec::new() } else { vec![b'\n'] };
            for event in events {
                line.extend(written(event)?.to_json()?);
                line.push(b'\n');
                if rustix::io::retry_on_intr(|| rustix::io::write(&file, &line))? != line.len() {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                line.clear();
            }
        }
    }
    Ok(())
}

/// Returns the event as the state root has it, with its texts shortened.
fn written(event: &Event) -> io::Result<Event> {
    write_line(event, &mut Vec::new())
}

impl Event {
    /// Returns the event as `penfold events --json` prints it, without a line feed.
    ///
    /// # Errors
    /// Those of serialisation.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        /// An event with its time as text.
        #[derive(Serialize)]
        struct TimedEvent<'a> {
            schema: u32,
            time: &'a str,
            #[serde(flatten)]
            about: &'a EventSubject,
            #[serde(flatten)]
            what: &'a EventKind,
        }
        let Event { schema, time_ns, about, what } = self;
        serde_json::to_vec(&TimedEvent { schema: *schema, time: &format_rfc3339(*time_ns), about, what })
    }
}

/// Returns the fields of an event, in the native protocol of journald.
fn datagram(event: &Event) -> io::Result<Vec<u8>> {
    let EventSubject { id, name, .. } = &event.about;
    let mut datagram = Vec::with_capacity(1024);
    let mut field = |key: &str, value: &[u8]| {
        datagram.extend_from_slice(key.as_bytes());
        if value.contains(&b'\n') {
            datagram.push(b'\n');
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            datagram.extend_from_slice(&length.to_le_bytes());
        } else {
            datagram.push(b'=');
        }
        datagram.extend_from_slice(value);
        datagram.push(b'\n');
    };
    field("MESSAGE", event_sentence(event).as_bytes());
    field("PRIORITY", event_priority(&event.what).to_string().as_bytes());
    field("SYSLOG_IDENTIFIER", b"penfold");
    field("PENFOLD_ID", id.as_bytes());
    if let Some(name) = name {
        field("PENFOLD_NAME", name.as_bytes());
    }
    field("PENFOLD_EVENT", event.what.kind().as_bytes());
    field("PENFOLD_JSON", &event.to_json()?);
    Ok(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 28.3
    #[test]
    fn values_with_line_feeds_have_their_length_before_them() {
        let about = EventSubject {
            id: "0123456789ab".to_owned(),
            name: Some("a\nPRIORITY=0".to_owned()),
            ..EventSubject::default()
        };
        let what = EventKind::Exec { number: 1, command: vec!["true".to_owned()] };
        let text = datagram(&Event { schema: 1, time_ns: 0, about, what }).unwrap();
        let name = b"PENFOLD_NAME\n\x0c\0\0\0\0\0\0\0a\nPRIORITY=0\nPENFOLD_EVENT=exec\n";
        assert!(text.windows(name.len()).any(|window| window == name), "{}", text.escape_ascii());
        assert!(text.starts_with(b"MESSAGE\n") && text.ends_with(b"}\n"), "{}", text.escape_ascii());
    }
}
