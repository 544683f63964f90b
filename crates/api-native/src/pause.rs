//! `/v1/sandboxes/{id}`: pause, unpause.

use axum::extract::State;
use penfold_control::{PauseError, Resolver, SandboxRef};
use penfold_server::AppState;
use penfold_server::records::find_sandbox;
use penfold_state::error_chain;

use super::extract::Path;
use super::model::Sandbox;
use super::problem::{Kind, Problem};
use super::sandboxes;

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(pause)).routes(routes!(unpause))
}

/// Freezes all processes of a sandbox. The answer comes once none of them runs. Limits, leases and ends hold for a paused sandbox, too.
#[utoipa::path(
    post, path = "/sandboxes/{id}/pause", tag = "sandboxes", operation_id = "pauseSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    responses(
        (status = 200, description = "the sandbox, which is paused", body = Sandbox),
        Problem,
    )
)]
async fn pause(State(app): State<AppState>, Path(id): Path<String>) -> Result<axum::Json<Sandbox>, Problem> {
    change(app, id, penfold_control::pause_sandbox).await
}

/// Lets the processes of a paused sandbox go on. A sandbox that runs is left as it is.
#[utoipa::path(
    post, path = "/sandboxes/{id}/unpause", tag = "sandboxes", operation_id = "unpauseSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    responses(
        (status = 200, description = "the sandbox, which runs", body = Sandbox),
        Problem,
    )
)]
async fn unpause(
    State(app): State<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Sandbox>, Problem> {
    change(app, id, penfold_control::unpause_sandbox).await
}

async fn change(
    app: AppState,
    id: String,
    act: fn(&Resolver, &SandboxRef) -> Result<(), PauseError>,
) -> Result<axum::Json<Sandbox>, Problem> {
    let changed = app.engine.call(move |scope| {
        let known = find_sandbox(scope, &id)?;
        act(&Resolver::new(scope.root()), &known).map_err(|error| unchanged(&known.id, &error))?;
        Ok::<String, Problem>(known.id)
    });
    let id = changed.await??;
    // The record is there unless the sandbox has ended.
    let seen = sandboxes::find(&app, &id).await.map_err(|problem| problem.or_ended(&id))?;
    Ok(axum::Json(seen.1))
}

fn unchanged(id: &str, error: &PauseError) -> Problem {
    let kind = match error {
        PauseError::Gone => return Problem::ended(id),
        PauseError::Status(status) if !status.is_living() => return Problem::ended(id),
        PauseError::Cgroup(_) => Kind::Internal,
        _ => Kind::Refused,
    };
    Problem::new(kind, format!("sandbox {id} is as it was: {}", error_chain(error)))
}
