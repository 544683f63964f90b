//! The D-Bus conversations, for a child process: asynchronous, without a limit of their own.

use std::time::Duration;

use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream, OwnedObjectPath, OwnedVariant, Variant};

use crate::manager::{Buses, ServiceManager};
use crate::scope_request::ScopeRequest;
use crate::service::ServiceSettings;

const SYSTEMD: &str = "org.freedesktop.systemd1";
const ROOT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// The time for the question whether logout ends a user's manager: no answer is no reason to lose the scope.
const LINGER_LIMIT: Duration = Duration::from_millis(300);

/// Runs a conversation on this thread.
pub(crate) fn run_conversation<T>(talk: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(talk)
}

/// Makes a scope with this process in it, and waits until the manager has finished. Returns whether the user lingers, if the
/// scope is the user's.
pub(crate) async fn make_scope(
    buses: &Buses,
    request: &ScopeRequest<'_>,
    process: u32,
) -> Result<Option<bool>, String> {
    let bus = connect(buses.of(request.manager)).await?;
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(SYSTEMD)
        .interface(MANAGER)
        .member("JobRemoved")
        .build()
        .map_err(said)?;
    // Before the call: the manager may finish before it answers.
    let mut removed = MessageStream::for_match_rule(rule, &bus, None).await.map_err(said)?;
    let job = match start(&bus, request, process, true).await {
        // Managers before version 253 do not know the property.
        Err(error) if error.contains("OOMPolicy") => start(&bus, request, process, false).await?,
        other => other?,
    };
    let result = finished(&mut removed, &job).await?;
    if result != "done" {
        return Err(format!("the job of unit {} ended as `{result}`", request.name));
    }
    Ok(match request.manager {
        ServiceManager::System => None,
        ServiceManager::User => tokio::time::timeout(LINGER_LIMIT, lingers(buses)).await.ok().flatten(),
    })
}

/// Reads how a service ends its processes.
pub(crate) async fn read_service(
    buses: &Buses,
    manager: ServiceManager,
    unit: &str,
) -> Result<ServiceSettings, String> {
    let bus = connect(buses.of(manager)).await?;
    let reply = bus.call_method(Some(SYSTEMD), ROOT, Some(MANAGER), "GetUnit", &unit).await.map_err(said)?;
    let path: OwnedObjectPath = reply.body().deserialize().map_err(said)?;
    let service = "org.freedesktop.systemd1.Service";
    let word = async |name| {
        String::try_from(property(&bus, (SYSTEMD, path.as_str()), service, name).await?).map_err(said)
    };
    let remains = property(&bus, (SYSTEMD, path.as_str()), service, "RemainAfterExit").await?;
    Ok(ServiceSettings {
        is_oneshot: word("Type").await? == "oneshot",
        remains: bool::try_from(remains).map_err(said)?,
        kills_members: matches!(word("KillMode").await?.as_str(), "control-group" | "mixed"),
    })
}

async fn connect(addresses: &[String]) -> Result<Connection, String> {
    let mut reason = "no bus is known".to_owned();
    for address in addresses {
        let built = zbus::connection::Builder::address(address.as_str()).build().await;
        match built {
            Ok(bus) => return Ok(bus),
            Err(error) => reason = format!("cannot connect to the bus `{address}`: {}", said(error)),
        }
    }
    Err(reason)
}

/// Calls `StartTransientUnit`, org.freedesktop.systemd1(5); returns the path of the job.
async fn start(
    bus: &Connection,
    request: &ScopeRequest<'_>,
    process: u32,
    has_oom_policy: bool,
) -> Result<OwnedObjectPath, String> {
    let stop_usec = u64::try_from(request.stop_timeout.as_micros()).unwrap_or(u64::MAX);
    let mut properties: Vec<(&str, Variant<'_>)> = vec![
        ("Description", Variant::from(request.description)),
        ("PIDs", Variant::from(vec![process])),
        ("Delegate", Variant::from(true)),
        ("TimeoutStopUSec", Variant::from(stop_usec)),
        // A scope that failed would keep its name.
        ("CollectMode", Variant::from("inactive-or-failed")),
    ];
    if let Some(slice) = request.slice {
        properties.push(("Slice", Variant::from(slice)));
    }
    if has_oom_policy {
        // Else the manager ends the whole scope when the kernel kills one member.
        properties.push(("OOMPolicy", Variant::from("continue")));
    }
    let others: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
    let body = (request.name, "fail", properties, others);
    let reply = bus.call_method(Some(SYSTEMD), ROOT, Some(MANAGER), "StartTransientUnit", &body).await;
    reply.map_err(said)?.body().deserialize().map_err(said)
}

/// Waits for the end of a job, and returns its result.
async fn finished(removed: &mut MessageStream, job: &OwnedObjectPath) -> Result<String, String> {
    loop {
        let message = next(removed).await.ok_or("the bus has closed the connection")?.map_err(said)?;
        let body = message.body();
        let (_, path, _, result): (u32, OwnedObjectPath, String, String) =
            body.deserialize().map_err(said)?;
        if path == *job {
            return Ok(result);
        }
    }
}

/// Returns the next message of a stream.
async fn next(stream: &mut MessageStream) -> Option<zbus::Result<zbus::Message>> {
    std::future::poll_fn(|context| {
        zbus::export::futures_core::Stream::poll_next(std::pin::Pin::new(&mut *stream), context)
    })
    .await
}

/// Tells whether the manager of this user goes on after logout; `None` if nobody says so.
async fn lingers(buses: &Buses) -> Option<bool> {
    let bus = connect(&buses.system).await.ok()?;
    let login = "org.freedesktop.login1";
    let user = rustix::process::getuid().as_raw();
    let manager = "org.freedesktop.login1.Manager";
    let reply =
        bus.call_method(Some(login), "/org/freedesktop/login1", Some(manager), "GetUser", &user).await;
    let path: OwnedObjectPath = reply.ok()?.body().deserialize().ok()?;
    let value = property(&bus, (login, path.as_str()), "org.freedesktop.login1.User", "Linger").await.ok()?;
    bool::try_from(value).ok()
}

async fn property(
    bus: &Connection,
    (service, path): (&str, &str),
    interface: &str,
    name: &str,
) -> Result<OwnedVariant, String> {
    let properties = Some("org.freedesktop.DBus.Properties");
    let reply = bus.call_method(Some(service), path, properties, "Get", &(interface, name)).await;
    reply.map_err(said)?.body().deserialize().map_err(said)
}

/// Returns the sentence of an error. That of a manager is its own, without the name of the error.
fn said(error: impl Into<zbus::Error>) -> String {
    match error.into() {
        zbus::Error::MethodError(_, Some(sentence), _) => sentence.trim_end_matches('.').to_owned(),
        error => error.to_string(),
    }
}
