//! The text of counters: the format of Prometheus, version 0.0.4, and the objects of `--json`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use penfold_state::counters::{BOUNDS_US, CounterValue, Counters};
use serde::Serialize;

/// The prefix of all names.
const PREFIX: &str = "penfold_";

/// A number in the format of `--json`.
#[derive(Serialize)]
pub(crate) struct Shown {
    name: String,
    labels: BTreeMap<&'static str, String>,
    value: Number,
}

/// A line: the end of the name, labels, and number.
struct Line {
    suffix: &'static str,
    labels: Vec<(&'static str, String)>,
    number: Number,
}

/// A number of a line.
#[derive(Serialize)]
#[serde(untagged)]
enum Number {
    Count(u64),
    Seconds(f64),
}

/// The counters as text.
pub(crate) fn text(counters: &Counters) -> String {
    let mut text = String::new();
    for family in counters.families() {
        let lines: Vec<Line> =
            family.samples.iter().flat_map(|sample| lines(&sample.labels, &sample.value)).collect();
        let is_counter = lines.iter().all(|line| line.suffix == "_total");
        let (suffix, kind) = if is_counter { ("_total", "counter") } else { ("", "histogram") };
        let name = format!("{PREFIX}{}", family.name);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name}{suffix} {}\n# TYPE {name}{suffix} {kind}", family.help);
        for Line { suffix, labels, number } in lines {
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = match number {
                Number::Count(number) => writeln!(text, "{name}{suffix}{labels} {number}"),
                Number::Seconds(number) => writeln!(text, "{name}{suffix}{labels} {number}"),
            };
        }
    }
    text
}

/// The counters as objects, one for each line of the text.
pub(crate) fn shown(counters: &Counters) -> Vec<Shown> {
    let families = counters.families();
    let samples =
        families.iter().flat_map(|family| family.samples.iter().map(move |sample| (family.name, sample)));
    samples
        .flat_map(|(name, sample)| {
            lines(&sample.labels, &sample.value).into_iter().map(move |line| Shown {
                name: format!("{PREFIX}{name}{}", line.suffix),
                labels: line.labels.into_iter().collect(),
                value: line.number,
            })
        })
        .collect()
}

fn lines(labels: &[(&'static str, &'static str)], value: &CounterValue) -> Vec<Line> {
    let labels: Vec<_> = labels.iter().map(|&(key, value)| (key, value.to_owned())).collect();
    match value {
        CounterValue::Count(number) => {
            vec![Line { suffix: "_total", labels, number: Number::Count(*number) }]
        }
        CounterValue::Histogram { sum_us, buckets } => {
            let seconds = |us| Duration::from_micros(us).as_secs_f64();
            let bounds = BOUNDS_US.map(|us| seconds(us).to_string()).into_iter().chain(["+Inf".to_owned()]);
            let mut count = 0;
            let buckets = bounds.zip(buckets).map(|(bound, number)| {
                count += number;
                let labels = labels.iter().cloned().chain([("le", bound)]).collect();
                Line { suffix: "_bucket", labels, number: Number::Count(count) }
            });
            let mut lines: Vec<Line> = buckets.collect();
            let sum = Number::Seconds(seconds(*sum_us));
            lines.push(Line { suffix: "_sum", labels: labels.clone(), number: sum });
            lines.push(Line { suffix: "_count", labels, number: Number::Count(count) });
            lines
        }
    }
}
