//! The input of commands.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use penfold_control::execs::{self, ExecView};
use penfold_server::execs::{WriteInputError, write_input};

use super::messages::{Input, InputRequest, SelectRequest, Selector, StreamInputRequest};
use super::select;
use crate::api::ApiState;
use crate::connect::{
    Code, Empty, Message, Messages, RpcError, StreamError, frame, last_frame, no_stream, stream as answer,
};
use crate::guest::Guest;

/// `SendInput`.
pub(super) async fn send(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(wanted): Message<InputRequest>,
) -> Result<Json<Empty>, RpcError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let view = find(&api, &guest, wanted.process).await?;
    write(&api, &guest, &view, wanted.input).await?;
    Ok(Json(Empty {}))
}

/// `CloseStdin`.
pub(super) async fn close(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(wanted): Message<SelectRequest>,
) -> Result<Json<Empty>, RpcError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let view = find(&api, &guest, wanted.process).await?;
    if view.terminal {
        let why = "the input of a terminal has no end; send Ctrl-D (0x04)";
        return Err(RpcError::new(Code::FailedPrecondition, why));
    }
    api.call(move |_| {
        let closed = execs::close_exec_input(guest.record()?, view.number);
        closed.map_err(|error| RpcError::internal(&error))
    })
    .await?;
    Ok(Json(Empty {}))
}

/// `StreamInput`: one message says which command, the others are its input, in their order.
pub(super) async fn stream(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    request: Request,
) -> Result<Response, Response> {
    let headers = request.headers().clone();
    let mut messages = Messages::of(request).ok_or_else(no_stream)?;
    let done = async {
        let guest = guest.of_headers(&api.app.engine, &headers).await?;
        let mut view: Option<ExecView> = None;
        while let Some(message) = messages.next::<StreamInputRequest>().await? {
            if let Some(start) = message.start {
                view = Some(find(&api, &guest, start.process).await?);
            }
            if let Some(data) = message.data {
                let view =
                    view.as_ref().ok_or_else(|| RpcError::invalid("the first message says which process"))?;
                write(&api, &guest, view, data.input).await?;
            }
        }
        Ok(())
    };
    done.await.map_err(|error| StreamError(error).into_response())?;
    let mut bytes =
        frame(&Empty {}).map_err(|error| StreamError(RpcError::internal(&error)).into_response())?;
    bytes.extend_from_slice(&last_frame(None));
    Ok(answer(Body::from(bytes)))
}

async fn find(api: &ApiState, guest: &Guest, selector: Selector) -> Result<ExecView, RpcError> {
    let files = guest.record()?.clone();
    api.call(move |_| select::select_running(&files, &selector)).await
}

async fn write(api: &ApiState, guest: &Guest, view: &ExecView, input: Input) -> Result<(), RpcError> {
    let (bytes, is_for_terminal) = input.bytes();
    if is_for_terminal != view.terminal {
        let why = if view.terminal {
            "the process has a terminal: send `pty`"
        } else {
            "the process has no terminal: send `stdin`"
        };
        return Err(RpcError::new(Code::FailedPrecondition, why));
    }
    let written = write_input(&api.app.engine, guest.record()?, view.number, &bytes).await;
    written.map_err(|error| match error {
        // It has ended by itself, and its end is not verified yet.
        WriteInputError::Closed { .. } if !select::is_running(view) => {
            select::missing(&Selector { pid: select::pid_of(view), tag: None })
        }
        WriteInputError::Closed { .. } => {
            RpcError::new(Code::FailedPrecondition, "the process has no open stdin, or has closed it")
        }
        error => RpcError::internal(&error),
    })
}
