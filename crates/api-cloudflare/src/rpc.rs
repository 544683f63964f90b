//! `/rpc`: the methods of the reference over one WebSocket, with the protocol Cap'n Web.
//!
//! - `wire` — messages and values as text; `session` — what the client can refer to; `step` — what a message asks for.
//! - `methods` — each method and its route; `methods_next` — the same from 0.13 on.
//! - `call` — a call as a request to its route; `outcome` — its result; `source` — streams and subscriptions among the results.
//! - `listeners` — functions of the client that hear the events of an answer.
//! - `outgoing` — results and streams to the client; `pipe` — streams of the client.
//!
//! A call goes to the same routes as over HTTP, so nothing of a method is said twice. When the socket closes, calls under way are
//! dropped as those of an HTTP client that goes away. Nothing that runs in a sandbox ends because of that.
//!
//! Invariants: a client that breaks the protocol, or holds more than it may, loses its session and nothing else; what one session
//! holds in memory is bounded.

mod call;
mod listeners;
mod methods;
mod methods_next;
mod outcome;
mod outgoing;
mod pipe;
mod session;
mod source;
mod step;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use penfold_server::AppState;
use penfold_server::sockets::{Message, NoUpgrade, Socket, SocketReceiver, Upgrade};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use self::call::{Routes, UNIT};
use self::listeners::Listeners;
use self::methods::Method;
use self::outcome::{Good, Outcome, await_result};
use self::outgoing::Outgoing;
use self::session::{Broken, Session};
use self::step::{Answer, Call, MethodOf, Step, Wait};
use self::wire::{Failure, Id};
use crate::answer::RouteResult;
use crate::api::ApiState;
use crate::ws::no_upgrade;

/// The path of the route.
pub(crate) const PATH: &str = "/rpc";
/// The calls at one time. At this number, the server reads no further message until a call has its result.
const CALLS: usize = 256;
/// Of these, the calls that may read a stream of the client: they need further messages.
const STREAMS: usize = 64;
/// The bytes of messages of which the call or the stream was not yet served. Beyond, the server reads no further message.
const ROOM_IN: usize = 64 << 20;
/// The bytes of results that the client has not released. Beyond, calls fail.
const ROOM_OUT: usize = 128 << 20;
/// The bytes of a message, as in the reference.
const LARGEST: usize = 32 << 20;

/// The time that the client has to answer the end of a broken session.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The route for calls. `routes` are those to which they go.
pub(crate) fn routes(routes: Router) -> Router<ApiState> {
    let open = async move |State(api): State<ApiState>, upgrade: Result<Upgrade, NoUpgrade>| -> RouteResult {
        let upgrade = upgrade.map_err(no_upgrade)?;
        let app = AppState::clone(&api.app);
        Ok(upgrade.accept(&api.app, LARGEST, move |socket| serve(socket, routes, app)))
    };
    Router::new().route("/rpc", get(open))
}

/// Serves a session until its socket closes, or the client breaks the protocol. If the server ends, what is under way is finished.
pub(crate) async fn serve(socket: Socket, routes: Router, app: AppState) {
    let (mut receiver, sender) = socket.split();
    let outgoing = Outgoing::new(sender);
    let mut server = Server {
        session: Session::new(),
        routes: Routes::new(routes, ROOM_OUT, STREAMS),
        outgoing: outgoing.clone(),
        calls: Arc::new(Semaphore::new(CALLS)),
        room: Arc::new(Semaphore::new(ROOM_IN / UNIT)),
        tasks: JoinSet::new(),
    };
    match server.run(&mut receiver).await {
        Ok(()) if app.drain.has_begun() => {
            outgoing.expect_no_answers();
            tokio::select! {
                () = server.finish() => {}
                () = outgoing.closed() => {}
            }
        }
        Ok(()) | Err(Broken::Aborted) => {}
        Err(broken) => {
            outgoing.abort(&Failure::new(&broken)).await;
            // A connection that is closed with unread messages would be reset, and the client would not get the reason.
            let rest = async { while receiver.receive().await.is_some() {} };
            let _ = tokio::time::timeout(LAST_WORD, rest).await;
        }
    }
}

/// A session with all that is under way. What is under way is dropped with it.
struct Server {
    session: Session,
    routes: Routes,
    outgoing: Outgoing,
    calls: Arc<Semaphore>,
    room: Arc<Semaphore>,
    /// Each returns the entry of the session that it did not need, if any.
    tasks: JoinSet<Option<Id>>,
}

impl Server {
    /// Reads messages until the socket closes.
    async fn run(&mut self, receiver: &mut SocketReceiver) -> Result<(), Broken> {
        while let Some(message) = receiver.receive().await {
            let Message::Text(text) = message else { return Err(Broken::Binary) };
            let message = wire::parse_message(&text)?;
            let length = text.len();
            drop(text);
            let step = self.session.take(message)?;
            if !self.begin(step, length).await {
                return Ok(());
            }
            while let Some(done) = self.tasks.try_join_next() {
                if let Ok(Some(unneeded)) = done {
                    self.session.forget(unneeded);
                }
            }
        }
        Ok(())
    }

    /// Waits for all that is under way.
    async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Begins what a message asks for; waits while there is no room for it. `false` once the client is gone.
    async fn begin(&mut self, step: Step, length: usize) -> bool {
        let Step { call, part, wait, settled } = step;
        if let Some((id, is_good)) = settled {
            self.outgoing.settle(id, is_good);
        }
        let units = length.div_ceil(UNIT);
        if let Some(part) = part {
            let Some(room) = self.acquire(&self.room, units).await else { return false };
            part.hand_over(Some(room));
        }
        if let Some(call) = call {
            let Some(place) = self.acquire(&self.calls, 1).await else { return false };
            let Some(room) = self.acquire(&self.room, units).await else { return false };
            self.start_call(call, (place, room));
        }
        if let Some(wait) = wait {
            self.start_wait(wait);
        }
        true
    }

    /// Waits for room. `None` once the client is gone.
    async fn acquire(&self, room: &Arc<Semaphore>, units: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(units).ok()?;
        tokio::select! {
            permit = Arc::clone(room).acquire_many_owned(units) => permit.ok(),
            () = self.outgoing.closed() => None,
        }
    }

    fn start_call(&mut self, call: Call, held: (OwnedSemaphorePermit, OwnedSemaphorePermit)) {
        let (routes, outgoing) = (self.routes.clone(), self.outgoing.clone());
        self.tasks.spawn(async move {
            let Call { method, of, mut arguments, promise } = call;
            let callbacks = std::mem::take(&mut arguments.callbacks);
            let listeners = Listeners::among(&arguments.values);
            let mut outcome = match of {
                MethodOf::Server(find) => routes.call(find, &method, arguments).await,
                MethodOf::Subscription(pending) => {
                    Outcome::new(await_result(pending).await.call(&method), None)
                }
            };
            if Method::find(&method, &[]).is_ok_and(Method::has_listeners) {
                outcome = listeners.hear(outcome, &outgoing).await;
            }
            promise.send_replace(Some(Arc::new(outcome)));
            drop(held);
            for id in callbacks {
                // The client may be gone.
                let _ = outgoing.send(wire::release(id, 1)).await;
            }
            None
        });
    }

    fn start_wait(&mut self, wait: Wait) {
        let outgoing = self.outgoing.clone();
        self.tasks.spawn(async move {
            let Wait { id, answer } = wait;
            let mut unneeded = None;
            let (pending, path) = match answer {
                Answer::Result(pending, path) => (pending, path),
                Answer::Subscription(pending, own) => {
                    if matches!(await_result(pending.clone()).await.result, Ok(Good::Subscription(_))) {
                        let _ = outgoing.send(wire::resolve(id, &wire::callable(own))).await;
                        return None;
                    }
                    unneeded = Some(own);
                    (pending, Vec::new())
                }
                Answer::Callable(own) => {
                    let _ = outgoing.send(wire::resolve(id, &wire::callable(own))).await;
                    return None;
                }
            };
            let outcome = await_result(pending).await;
            let stream = outgoing.send_result(id, &outcome, &path).await;
            drop(outcome);
            if let Ok(Some((pipe, source))) = stream {
                let _ = outgoing.send_stream(pipe, source).await;
            }
            unneeded
        });
    }
}
