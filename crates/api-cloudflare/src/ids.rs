//! The ids of sessions and processes, which clients choose.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Uri, header};
use penfold_server::ids::hashed_name;

use super::error::{ApiError, Code};

/// The session of a request that names none.
const DEFAULT: &str = "default";
/// The id by which a client runs a command without a session.
const NO_SESSION: &str = "__DISABLE_SESSION__";
/// The longest id.
const LONGEST: usize = 200;
/// Ids of processes that are paths of other routes.
const ROUTES: [&str; 3] = ["list", "start", "kill-all"];

/// The labels of execs with the ids of processes, contexts and terminals.
pub(crate) const PROCESS: &str = "process";
pub(crate) const CONTEXT: &str = "context";
pub(crate) const TERMINAL: &str = "terminal";

/// The id of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(String);

impl SessionId {
    /// Checks an id; without one, it is the default session.
    ///
    /// # Errors
    /// When the id is not valid.
    pub(crate) fn new(given: Option<&str>) -> Result<SessionId, ApiError> {
        let text = given.filter(|text| !text.is_empty()).unwrap_or(DEFAULT);
        check("sessionId", text).map(|()| SessionId(text.to_owned()))
    }

    /// Finds the session of a command: in the body, in a header, or in the query.
    ///
    /// # Errors
    /// When the id is not valid.
    pub(crate) fn of_command(
        body: Option<&str>,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<SessionId, ApiError> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = header(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
        let query = |name| query_value(uri.query().unwrap_or_default(), name);
        let mut given = body.map(str::to_owned).filter(|id| !id.is_empty());
        given = given.or_else(|| bearer.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()));
        given = given.or_else(|| header("x-session-id").map(str::to_owned).filter(|id| !id.is_empty()));
        given = given.or_else(|| query("session")).or_else(|| query("sessionId"));
        SessionId::new(given.as_deref())
    }

    /// The session that holds the commands without a session.
    pub(crate) fn none() -> SessionId {
        SessionId(NO_SESSION.to_owned())
    }

    /// Tells whether a command runs without a session.
    pub(crate) fn is_none(&self) -> bool {
        self.0 == NO_SESSION
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the session's sandbox. It is made from a hash, since an id may have any characters; the label has the
    /// id itself.
    pub(crate) fn sandbox_name(&self) -> String {
        hashed_name("cf", &self.0)
    }
}

/// The id of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    text: String,
    is_chosen: bool,
}

impl ProcessId {
    /// Checks an id; without one, a new one is made.
    ///
    /// # Errors
    /// When the id is not valid.
    pub(crate) fn new(given: Option<&str>) -> Result<ProcessId, ApiError> {
        let Some(text) = given.filter(|text| !text.is_empty()) else { return Ok(ProcessId::fresh()) };
        check("processId", text)?;
        if ROUTES.contains(&text) {
            let message = format!("`{text}` is reserved and cannot be a processId");
            return Err(ApiError::new(Code::ValidationFailed, message));
        }
        Ok(ProcessId { text: text.to_owned(), is_chosen: true })
    }

    fn fresh() -> ProcessId {
        ProcessId { text: fresh_id("proc"), is_chosen: false }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a client chose the id. Nobody else makes an id that the server made.
    pub(crate) fn is_chosen(&self) -> bool {
        self.is_chosen
    }
}

/// Makes an id of the form that the reference has.
pub(crate) fn fresh_id(prefix: &str) -> String {
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut random = [0; 8];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let mut left = u64::from_le_bytes(random);
    let mut word = String::new();
    for _ in 0..6 {
        let digit = u32::try_from(left % 36).ok().and_then(|digit| char::from_digit(digit, 36));
        word.extend(digit);
        left /= 36;
    }
    format!("{prefix}_{ms}_{word}")
}

/// An id is shown to people and is a segment of a URL: it has no control characters and cannot be taken for a path.
fn check(field: &str, text: &str) -> Result<(), ApiError> {
    let flaw = if text.len() > LONGEST {
        format!("is longer than {LONGEST} bytes")
    } else if text.starts_with('.') {
        "begins with `.`".to_owned()
    } else if text.contains(|character: char| character.is_control() || "/\\?#%".contains(character)) {
        "has a character that an id cannot have".to_owned()
    } else {
        return Ok(());
    };
    Err(ApiError::new(Code::ValidationFailed, format!("{field} {flaw}")))
}

/// Returns a value of a query, decoded.
pub(crate) fn query_value(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value =
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).find(|value| !value.is_empty())?;
    Some(decoded(value))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn chosen(body: Option<&str>, headers: &[(&'static str, &'static str)], uri: &'static str) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        SessionId::of_command(body, &map, &Uri::from_static(uri)).unwrap().as_str().to_owned()
    }

    #[test]
    fn the_session_comes_from_body_bearer_header_and_query_in_this_order() {
        let all = [("authorization", "Bearer two"), ("x-session-id", "three")];
        let uri = "/api/execute?session=four&sessionId=five";
        assert_eq!(chosen(Some("one"), &all, uri), "one");
        assert_eq!(chosen(None, &all, uri), "two");
        assert_eq!(chosen(Some(""), &all[1..], uri), "three");
        assert_eq!(chosen(None, &[], uri), "four");
        assert_eq!(chosen(None, &[], "/api/execute?sessionId=a%20b+c"), "a b c");
        assert_eq!(chosen(None, &[("authorization", "Basic x")], "/api/execute"), "default");
    }

    #[test]
    fn ids_that_could_be_paths_are_refused() {
        for bad in ["..", ".", ".x", "a/b", "a\\b", "a\0b", "a\nb", "a%2fb", "a?b", "a#b", &"x".repeat(201)] {
            assert!(SessionId::new(Some(bad)).is_err(), "{bad:?}");
            assert!(ProcessId::new(Some(bad)).is_err(), "{bad:?}");
        }
        for good in ["a", "user:1@x.y", "ä é", "__DISABLE_SESSION__", "-rf"] {
            assert!(SessionId::new(Some(good)).is_ok(), "{good:?}");
        }
        assert!(ProcessId::new(Some("kill-all")).is_err());
    }

    #[test]
    fn a_sandbox_has_a_valid_name_whatever_the_id() {
        let name = SessionId::new(Some("ä é")).unwrap().sandbox_name();
        assert!(penfold_state::names::is_name(&name), "{name}");
        assert_ne!(name, SessionId::new(Some("ä e")).unwrap().sandbox_name());
    }

    #[test]
    fn a_new_process_id_has_the_form_of_the_reference() {
        let id = ProcessId::new(None).unwrap().text;
        let parts: Vec<&str> = id.split('_').collect();
        assert_eq!((parts.len(), parts[0], parts[2].len()), (3, "proc", 6), "{id}");
    }
}
