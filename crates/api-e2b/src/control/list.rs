//! Pages of sandboxes.

use std::borrow::Cow;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use penfold_state::Id;
use penfold_state::state::Status;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::Found;
use super::model::{Described, started, time};
use crate::api::{Api, ApiState};
use crate::error::ApiError;
use crate::templates::{self, TEMPLATE};

/// The most sandboxes of a page, and how many it has unless asked otherwise.
const PAGE: usize = 100;
/// The header with the token of the next page.
const NEXT: HeaderName = HeaderName::from_static("x-next-token");

/// The parameters of a query, each as often as it was given.
type Parameters = Query<Vec<(String, String)>>;

/// `GET /sandboxes`: those that run.
pub(super) async fn running(
    State(api): State<ApiState>,
    Query(parameters): Parameters,
) -> Result<Json<Vec<Described>>, ApiError> {
    let mut filter = Filter::of(&parameters)?;
    filter.states = vec![Status::Running];
    let found = filter.select(&api).await?;
    api.call(move |api| describe(api, &found)).await.map(Json)
}

/// `GET /v2/sandboxes`: a page of those that run or are paused.
pub(super) async fn page(
    State(api): State<ApiState>,
    Query(parameters): Parameters,
) -> Result<(HeaderMap, Json<Vec<Described>>), ApiError> {
    let filter = Filter::of(&parameters)?;
    let mut found = filter.select(&api).await?;
    if let Some(after) = &filter.after {
        found.retain(|one| if filter.is_ascending { place(one) > *after } else { place(one) < *after });
    }
    let mut headers = HeaderMap::new();
    if found.len() > filter.limit {
        found.truncate(filter.limit);
        let token = found.last().map(|last| {
            let (start, id) = place(last);
            format!("{start}-{id}")
        });
        headers.extend(token.and_then(|token| HeaderValue::from_str(&token).ok()).map(|token| (NEXT, token)));
    }
    api.call(move |api| describe(api, &found)).await.map(|page| (headers, Json(page)))
}

fn describe(api: &Api, found: &[Found]) -> Result<Vec<Described>, ApiError> {
    found.iter().map(|one| Described::of(api, one, false)).collect()
}

/// The place of a sandbox in a list.
fn place((_, seen): &Found) -> (u64, String) {
    (started(seen), seen.id.clone())
}

/// `GET /templates/aliases/{name}`: whether there is a template of this name.
pub(super) async fn template(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    match templates::spec_of(&api.app, &name) {
        Ok(_) => Ok(Json(json!({ "templateID": name, "public": false }))),
        Err(known) => Err(ApiError::no_template(&name, &known)),
    }
}

/// Which sandboxes a client wants, and in which order.
#[derive(Debug)]
struct Filter {
    metadata: Vec<(String, String)>,
    states: Vec<Status>,
    template: Option<String>,
    started_after: Option<String>,
    is_ascending: bool,
    limit: usize,
    after: Option<(u64, String)>,
}

impl Filter {
    fn of(parameters: &[(String, String)]) -> Result<Filter, ApiError> {
        let mut filter = Filter {
            metadata: Vec::new(),
            states: Vec::new(),
            template: None,
            started_after: None,
            is_ascending: false,
            limit: PAGE,
            after: None,
        };
        for (key, value) in parameters {
            match key.as_str() {
                "metadata" => filter.metadata.extend(pairs(value)?),
                "state" => {
                    for state in value.split(',') {
                        filter.states.push(match state {
                            "running" => Status::Running,
                            "paused" => Status::Paused,
                            _ => {
                                return Err(ApiError::bad(format!(
                                    "state '{state}' is neither 'running' nor 'paused'"
                                )));
                            }
                        });
                    }
                }
                "template" => filter.template = Some(value.clone()),
                "startedAfter" => filter.started_after = Some(value.clone()),
                "order" => filter.is_ascending = value == "asc",
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE).contains(limit));
                    filter.limit =
                        limit.ok_or_else(|| ApiError::bad("limit is not a number from 1 to 100"))?;
                }
                "nextToken" => {
                    let parsed = value.split_once('-').filter(|(_, id)| Id::is_short(id));
                    let parsed = parsed.and_then(|(start, id)| Some((start.parse().ok()?, id.to_owned())));
                    filter.after =
                        Some(parsed.ok_or_else(|| ApiError::bad("nextToken is not the one of a page"))?);
                }
                _ => {}
            }
        }
        Ok(filter)
    }

    /// Returns the living sandboxes of the caller that are wanted, in order.
    async fn select(&self, api: &Api) -> Result<Vec<Found>, ApiError> {
        let mut found = api.app.engine.list(false).await?;
        let scope = api.app.engine.scope();
        found.retain(|(_, seen)| {
            let labels = &seen.labels;
            let is_of_state = if seen.status == Status::Paused { Status::Paused } else { Status::Running };
            labels.contains_key(TEMPLATE)
                && seen.status.is_living()
                && scope.is_own(penfold_state::names::tenant_of(labels))
                && (self.states.is_empty() || self.states.contains(&is_of_state))
                && self.metadata.iter().all(|(key, value)| labels.get(key) == Some(value))
                && self.template.as_ref().is_none_or(|template| labels.get(TEMPLATE) == Some(template))
                && self.started_after.as_ref().is_none_or(|after| is_not_before(&time(started(seen)), after))
        });
        found.sort_by_key(place);
        if !self.is_ascending {
            found.reverse();
        }
        Ok(found)
    }
}

/// Compares two texts of times in UTC by their parts up to the fraction; a fraction may be of any length, or missing.
fn is_not_before(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let text = text.trim_end_matches("+00:00").trim_end_matches('Z');
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        (whole.to_owned(), format!("{fraction:0<9}"))
    };
    parts(one) >= parts(other)
}

/// Reads `a=b&c=d`, which was encoded once more as the value of a parameter. The SDKs encode each key and each value by itself before.
fn pairs(text: &str) -> Result<Vec<(String, String)>, ApiError> {
    let bad = || ApiError::bad("metadata is not of the form key=value&key=value");
    let uri: Uri = format!("/?{}", text.replace(' ', "+")).parse().map_err(|_| bad())?;
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&uri).map_err(|_| bad())?;
    let decode = |text: &str| percent_decode_str(text).decode_utf8().map(Cow::into_owned).map_err(|_| bad());
    pairs.iter().map(|(key, value)| Ok((decode(key)?, decode(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_from_a_query() {
        let given = |pairs: &[(&str, &str)]| {
            Filter::of(
                &pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect::<Vec<_>>(),
            )
        };
        let filter = given(&[
            ("metadata", "a=b%20c&d=e"),
            ("metadata", "of%252Fsdk=b%2520%2526+c%252B"),
            ("state", "running,paused"),
            ("limit", "3"),
            ("order", "asc"),
            ("nextToken", "17-0123456789ab"),
        ])
        .unwrap();
        assert_eq!(
            filter.metadata,
            [("a", "b c"), ("d", "e"), ("of/sdk", "b & c+")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
        assert_eq!(filter.states, [Status::Running, Status::Paused]);
        assert!(filter.is_ascending && filter.limit == 3);
        assert_eq!(filter.after, Some((17, "0123456789ab".to_owned())));
        for bad in [("state", "x"), ("limit", "0"), ("limit", "101"), ("nextToken", "x")] {
            assert!(given(&[bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn times_are_compared_with_fractions_of_any_length() {
        assert!(is_not_before("2026-11-21T10:35:00.100000000Z", "2026-11-21T10:35:00.05Z"));
        assert!(is_not_before("2026-11-21T10:35:01.000000000Z", "2026-11-21T10:35:00.999999+00:00"));
        assert!(is_not_before("2026-11-21T10:35:00.000000000Z", "2026-11-21T10:35:00Z"));
        assert!(!is_not_before("2026-11-21T10:35:00.000000000Z", "2026-11-21T10:35:00.000000001Z"));
    }
}
