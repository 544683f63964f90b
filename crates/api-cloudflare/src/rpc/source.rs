//! Streams that are to be sent, and subscriptions: streams that the client asks for later.

use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use tokio::sync::watch;

/// What the parts of a stream are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Bytes,
    /// Objects, which the body has as server-sent events.
    Events,
}

/// A stream that is to be sent.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) body: Body,
    pub(crate) form: Form,
    /// The stream ends early once this has the value `true`, or its sender is dropped.
    cancelled: Option<watch::Receiver<bool>>,
}

impl Source {
    /// A stream of bytes that nobody cancels.
    pub(crate) fn bytes(body: Body) -> Source {
        Source { body, form: Form::Bytes, cancelled: None }
    }

    /// Returns the body, its form, and what ends the stream early.
    pub(crate) fn split(self) -> (Body, Form, Cancel) {
        (self.body, self.form, Cancel(self.cancelled))
    }
}

/// Tells when a stream is to end early.
#[derive(Debug)]
pub(crate) struct Cancel(Option<watch::Receiver<bool>>);

impl Cancel {
    /// Waits until the stream is to end early; for ever if nothing can end it.
    pub(crate) async fn wait(&mut self) {
        match &mut self.0 {
            // An error means that the subscription was dropped.
            Some(cancelled) => drop(cancelled.wait_for(|&is_cancelled| is_cancelled).await),
            None => std::future::pending().await,
        }
    }
}

/// A stream that the client asks for later. When this value is dropped, the stream ends.
#[derive(Debug)]
pub(crate) struct Subscription {
    body: Mutex<Option<Body>>,
    form: Form,
    cancelled: watch::Sender<bool>,
}

impl Subscription {
    pub(crate) fn new(body: Body, form: Form) -> Subscription {
        Subscription { body: Mutex::new(Some(body)), form, cancelled: watch::channel(false).0 }
    }

    /// Takes the stream. `None` if it was taken or cancelled before.
    pub(crate) fn take(&self) -> Option<Source> {
        let body = self.body.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Source { body, form: self.form, cancelled: Some(self.cancelled.subscribe()) })
    }

    /// Ends the stream.
    pub(crate) fn cancel(&self) {
        drop(self.body.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.cancelled.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_taken_once_and_ends_with_its_subscription() {
        let subscription = Subscription::new(Body::from("x"), Form::Events);
        let (_, form, mut cancel) = subscription.take().unwrap().split();
        assert_eq!(form, Form::Events);
        assert!(subscription.take().is_none());
        drop(subscription);
        cancel.wait().await;
    }

    #[tokio::test]
    async fn a_cancelled_subscription_has_no_stream() {
        let subscription = Subscription::new(Body::from("x"), Form::Bytes);
        let (.., mut cancel) = subscription.take().unwrap().split();
        subscription.cancel();
        cancel.wait().await;
        let unread = Subscription::new(Body::from("x"), Form::Bytes);
        unread.cancel();
        assert!(unread.take().is_none());
    }
}
