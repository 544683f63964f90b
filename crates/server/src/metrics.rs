//! The counters behind `/metrics`; docs/metrics.md has their names.

use std::fmt;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use penfold_state::counters::{self, BOUNDS_US, CounterFamily, Counters};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the buckets of a request's time, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0];

/// The labels of a request. There are few values of each, whatever callers send.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    api: &'static str,
    method: &'static str,
    status: u16,
}

impl RequestLabels {
    /// The labels of an answered request. `api` is the name of its dialect.
    pub fn new(api: &'static str, method: &Method, status: StatusCode) -> RequestLabels {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            Method::HEAD => "HEAD",
            Method::PATCH => "PATCH",
            _ => "other",
        };
        RequestLabels { api, method, status: status.as_u16() }
    }
}

/// The labels of a connection that was not served.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabels {
    /// `limit` or `user`.
    pub reason: &'static str,
}

/// The counters behind `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Answered requests.
    pub requests: Family<RequestLabels, Counter>,
    /// The time from the head of a request to the head of its answer.
    pub request_seconds: Histogram,
    /// Open connections.
    pub connections: Gauge,
    /// Connections that were closed unserved.
    pub refused: Family<RefusedLabels, Counter>,
    /// Sandboxes that were started.
    pub sandboxes_started: Counter,
    /// Sandboxes that lost their supervisors and were recovered.
    pub sandboxes_recovered: Counter,
    /// Open streams of output or events.
    pub streams: Gauge,
    /// Streams that lost output, since their reader was slow.
    pub streams_lagged: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("penfold"),
            requests: Family::default(),
            request_seconds: Histogram::new(BUCKETS),
            connections: Gauge::default(),
            refused: Family::default(),
            sandboxes_started: Counter::default(),
            sandboxes_recovered: Counter::default(),
            streams: Gauge::default(),
            streams_lagged: Counter::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("http_requests", "Answered requests", metrics.requests.clone());
        let help = "Seconds from the head of a request to the head of its answer";
        registry.register("http_request_seconds", help, metrics.request_seconds.clone());
        registry.register("http_connections", "Open connections", metrics.connections.clone());
        registry.register("http_connections_refused", "Connections closed unserved", metrics.refused.clone());
        registry.register("sandboxes_started", "Started sandboxes", metrics.sandboxes_started.clone());
        let help = "Sandboxes that lost their supervisors and were recovered";
        registry.register("sandboxes_recovered", help, metrics.sandboxes_recovered.clone());
        registry.register("streams", "Open streams of output or events", metrics.streams.clone());
        registry.register(
            "streams_lagged",
            "Streams that lost output to a slow reader",
            metrics.streams_lagged.clone(),
        );
        metrics
    }
}

impl Metrics {
    /// Writes all of them as text for `/metrics`, with the counters of the state root as far as they could be read.
    pub(crate) fn text(&self, of_root: Option<Counters>) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode_registry(&mut text, &self.registry);
        if let Some(counters) = of_root {
            let mut registry = Registry::with_prefix("penfold");
            registry.register_collector(Box::new(OfRoot(counters)));
            let _ = text::encode_registry(&mut text, &registry);
        }
        let _ = text::encode_eof(&mut text);
        text
    }
}

/// The counters of the state root, which all processes of penfold write.
#[derive(Debug)]
struct OfRoot(Counters);

impl Collector for OfRoot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for CounterFamily { name, help, samples } in self.0.families() {
            let is_histogram =
                samples.iter().any(|sample| matches!(sample.value, counters::CounterValue::Histogram { .. }));
            let kind = if is_histogram { MetricType::Histogram } else { MetricType::Counter };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for sample in &samples {
                if sample.labels.is_empty() {
                    put(&mut metric, &sample.value)?;
                } else {
                    put(&mut metric.encode_family(&sample.labels)?, &sample.value)?;
                }
            }
        }
        Ok(())
    }
}

fn put(metric: &mut MetricEncoder<'_>, value: &counters::CounterValue) -> fmt::Result {
    match value {
        counters::CounterValue::Count(number) => metric.encode_counter::<NoLabelSet, _, u64>(number, None),
        counters::CounterValue::Histogram { sum_us, buckets } => {
            let bounds = BOUNDS_US.map(seconds).into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(buckets.iter().copied()).collect();
            let count = buckets.iter().map(|(_, number)| number).sum();
            metric.encode_histogram::<NoLabelSet>(seconds(*sum_us), count, &buckets, None)
        }
    }
}

fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}
