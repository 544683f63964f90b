//! Log lines on standard error, as text or as JSON.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `time level message key=value …`.
    Text,
    /// An object on each line.
    Json,
}

/// Writes the events of this process to standard error from now on. Only the first call has an effect.
pub fn log_to_standard_error(format: LogFormat, quiet: bool) {
    let most = if quiet { Level::WARN } else { Level::INFO };
    let _ = tracing::subscriber::set_global_default(LogOutput { format, most });
}

/// Writes each event as one line, with one write(2). Spans are not shown.
struct LogOutput {
    format: LogFormat,
    most: Level,
}

impl Subscriber for LogOutput {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most && metadata.target().starts_with("penfold")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = rfc3339(now.as_secs(), now.subsec_millis());
        let line = line(self.format, &time, event.metadata().level().as_str(), fields);
        // A log that cannot be written changes nothing.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.add(field, format!("{value:?}").into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, ((value * 1000.0).round() / 1000.0).into());
    }
}

fn line(format: LogFormat, time: &str, level: &str, fields: Fields) -> String {
    let Fields { message, others } = fields;
    match format {
        LogFormat::Json => {
            let mut object = Map::new();
            object.insert("time".to_owned(), time.into());
            object.insert("level".to_owned(), level.to_lowercase().into());
            object.insert("message".to_owned(), message.into());
            for (key, value) in others {
                object.entry(key).or_insert(value);
            }
            format!("{}\n", Value::Object(object))
        }
        LogFormat::Text => {
            let mut line = format!("{time} {level:5} {message}");
            for (key, value) in others {
                // Text of a caller stays on its line, and moves no cursor.
                let plain = value.as_str().filter(|text| !text.is_empty() && text.chars().all(is_plain));
                let _ = match plain {
                    Some(text) => write!(line, " {key}={text}"),
                    None => write!(
                        line,
                        " {key}={}",
                        value.to_string().escape_debug().to_string().replace("\\\"", "\"")
                    ),
                };
            }
            line.push('\n');
            line
        }
    }
}

fn is_plain(character: char) -> bool {
    character.is_ascii_graphic() && character != '"' && character != '\\'
}

/// A time since 1970 in UTC; the days to dates as in the proleptic Gregorian calendar.
fn rfc3339(seconds: u64, millis: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the day of a leap year is its last; eras have 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(rfc3339(0, 7), "1970-01-01T00:00:00.007Z");
        assert_eq!(rfc3339(951_782_400, 0), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_467_599, 999), "2026-11-23T20:59:59.999Z");
    }

    #[test]
    fn text_of_a_caller_stays_on_its_line() {
        let others: Map<String, Value> =
            [("path".to_owned(), Value::from("/a\n\u{1b}[2J\u{202e}b"))].into_iter().collect();
        let text = |format| {
            line(format, "now", "INFO", Fields { message: "request".into(), others: others.clone() })
        };
        for format in [LogFormat::Text, LogFormat::Json] {
            let line = text(format);
            assert!(!line.trim_end().chars().any(char::is_control), "{line:?}");
        }
        assert!(text(LogFormat::Text).starts_with("now INFO  request path="));
        assert_eq!(
            serde_json::from_str::<Value>(&text(LogFormat::Json)).unwrap()["path"],
            "/a\n\u{1b}[2J\u{202e}b"
        );
    }
}
