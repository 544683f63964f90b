//! The body of a request for a watch, with the messages of the reference.

use std::path::{Component, Path, PathBuf};

use penfold_server::watched::{ChangeKind, Filter, Pattern, Place, TreeRequest};
use serde_json::{Map, Value, json};

use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::files::resolve;
use crate::request::Parsed;

/// The patterns of a request that has none.
const USUAL_EXCLUDES: [&str; 3] = [".git", "node_modules", ".DS_Store"];
/// The kinds of a request that has none.
const USUAL_KINDS: [&str; 5] = ["create", "modify", "delete", "move_from", "move_to"];
/// The most patterns of a request, and the longest.
const MOST_PATTERNS: usize = 100;
const LONGEST_PATTERN: usize = 1024;

/// What a client wants to watch.
#[derive(Debug)]
pub(super) struct WatchRequest {
    pub(super) tree: TreeRequest,
    /// The id of the session in whose name it is watched.
    pub(super) session: Option<String>,
    /// The version since which changes count.
    pub(super) since: Option<String>,
}

impl WatchRequest {
    /// Checks a body.
    ///
    /// # Errors
    /// When a field is not valid.
    pub(super) async fn new(
        api: &ApiState,
        body: Result<Parsed<Value>, ApiError>,
    ) -> Result<WatchRequest, ApiError> {
        let Parsed(body) = body.map_err(|error| match error.code() {
            Code::InternalError => invalid(error.message()),
            _ => error,
        })?;
        let no_fields = Map::new();
        let fields = match &body {
            Value::Object(fields) => fields,
            // An array is an object without these fields.
            Value::Array(_) => &no_fields,
            _ => return Err(invalid("Request body must be a JSON object")),
        };
        let path = path(fields)?;
        let filter = filter(fields)?;
        let is_recursive = match fields.get("recursive") {
            None => true,
            Some(Value::Bool(is_recursive)) => *is_recursive,
            Some(_) => {
                return Err(invalid_field(fields, "recursive", "must be a boolean when provided"));
            }
        };
        let kinds = kinds(fields)?;
        let since = since(fields)?;
        if path.contains('\0') {
            return Err(invalid_field(fields, "path", "contains invalid null bytes"));
        }
        let session = match fields.get("sessionId") {
            None | Some(Value::Null) => None,
            Some(Value::String(session)) => Some(session.as_str()),
            Some(_) => return Err(invalid_field(fields, "sessionId", "must be a string")),
        };
        let top = normal(&resolve(api, "path", Some(path.trim()), session).await?);
        let session = session.map(str::to_owned);
        Ok(WatchRequest {
            tree: TreeRequest { place: Place::Host, top, is_recursive, filter, kinds },
            session,
            since,
        })
    }
}

fn invalid(message: &str) -> ApiError {
    ApiError::new(Code::ValidationFailed, message)
}

fn invalid_field(fields: &Map<String, Value>, field: &str, why: &str) -> ApiError {
    let error = invalid(&format!("{field} {why}"));
    match fields.get(field) {
        Some(value) => error.with(field, value.clone()),
        None => error,
    }
}

fn path(fields: &Map<String, Value>) -> Result<&str, ApiError> {
    match fields.get("path") {
        Some(Value::String(path)) if !path.trim().is_empty() => Ok(path),
        _ => Err(invalid_field(fields, "path", "is required and must be a non-empty string")),
    }
}

fn filter(fields: &Map<String, Value>) -> Result<Filter, ApiError> {
    let has_some = |field: &str| match fields.get(field) {
        Some(Value::Array(patterns)) => !patterns.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        _ => false,
    };
    if has_some("include") && has_some("exclude") {
        let message = "include and exclude cannot be used together. Use include to whitelist patterns, or exclude to blacklist patterns.";
        let error = invalid(message).with("include", json!(fields.get("include")));
        return Err(error.with("exclude", json!(fields.get("exclude"))));
    }
    let include = patterns(fields, "include")?;
    let exclude = patterns(fields, "exclude")?;
    Ok(if !include.is_empty() {
        Filter::Include(include)
    } else if exclude.is_empty() {
        Filter::Exclude(USUAL_EXCLUDES.iter().map(|pattern| Pattern::new(pattern)).collect())
    } else {
        Filter::Exclude(exclude)
    })
}

/// Returns the patterns of a field, sorted.
fn patterns(fields: &Map<String, Value>, field: &str) -> Result<Vec<Pattern>, ApiError> {
    let texts = strings(fields, field)?;
    let is_unsupported = |text: &&str| text.trim().is_empty() || text.contains(['\0', '[', ']', '{', '}']);
    if let Some(pattern) = texts.iter().copied().find(is_unsupported) {
        let why = "contains unsupported glob syntax. Supported tokens: *, **, ? and path separators";
        return Err(invalid_field(fields, field, why).with("pattern", pattern));
    }
    if texts.len() > MOST_PATTERNS || texts.iter().any(|text| text.len() > LONGEST_PATTERN) {
        let why =
            format!("has more than {MOST_PATTERNS} patterns, or one of more than {LONGEST_PATTERN} bytes");
        return Err(invalid(&format!("{field} {why}")));
    }
    let mut patterns: Vec<Pattern> = texts.into_iter().map(Pattern::new).collect();
    patterns.sort();
    patterns.dedup();
    Ok(patterns)
}

fn strings<'a>(fields: &'a Map<String, Value>, field: &str) -> Result<Vec<&'a str>, ApiError> {
    let texts = match fields.get(field) {
        None => Some(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(Value::as_str).collect(),
        Some(_) => None,
    };
    texts.ok_or_else(|| invalid_field(fields, field, "must be an array of strings"))
}

/// Returns the kinds of changes to report, sorted. Unknown ones are ignored, as in the reference.
fn kinds(fields: &Map<String, Value>) -> Result<Vec<ChangeKind>, ApiError> {
    let mut kinds: Vec<ChangeKind> =
        strings(fields, "events")?.into_iter().filter_map(kind_of_word).collect();
    if kinds.is_empty() {
        kinds = USUAL_KINDS.into_iter().filter_map(kind_of_word).collect();
    }
    kinds.sort_unstable();
    kinds.dedup();
    Ok(kinds)
}

fn kind_of_word(word: &str) -> Option<ChangeKind> {
    Some(match word {
        "create" => ChangeKind::Create,
        "modify" => ChangeKind::Modify,
        "delete" => ChangeKind::Delete,
        "move_from" => ChangeKind::MoveFrom,
        "move_to" => ChangeKind::MoveTo,
        "attrib" => ChangeKind::Attributes,
        _ => return None,
    })
}

fn since(fields: &Map<String, Value>) -> Result<Option<String>, ApiError> {
    match fields.get("since") {
        None => Ok(None),
        Some(Value::String(since)) if since.contains('\0') => {
            Err(invalid_field(fields, "since", "contains invalid null bytes"))
        }
        Some(Value::String(since)) if !since.trim().is_empty() => Ok(Some(since.clone())),
        Some(_) => Err(invalid_field(fields, "since", "must be a non-empty string when provided")),
    }
}

/// Returns an absolute path without `.`, `..` and double slashes, by its text.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            _ => {}
        }
    }
    normal
}
