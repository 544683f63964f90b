//! The numbers for people, in a few columns.

/// Formats a size in a few columns: `0B`, `12K`, `3.4M`, `512M`, `1.5G`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "K", "M", "G", "T", "P"];
    let (mut whole, mut tenths, mut unit) = (bytes, 0, 0);
    while whole >= 1000 && unit + 1 < UNITS.len() {
        (whole, tenths) = (whole / 1024, whole % 1024 * 10 / 1024);
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    if unit == 0 || whole >= 10 { format!("{whole}{name}") } else { format!("{whole}.{tenths}{name}") }
}

/// Formats a use of CPU: `0.0%`, `99.5%`, `250%`; a dash before the second look.
pub fn format_percent(percent: Option<f64>) -> String {
    match percent {
        None => "-".to_owned(),
        Some(percent) if percent >= 100.0 => format!("{percent:.0}%"),
        Some(percent) => format!("{percent:.1}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        let sizes = [0, 999, 1024, 10 * 1024, 64 << 20, 3_670_016, 1 << 40, u64::MAX];
        let texts = sizes.map(format_size);
        assert_eq!(texts, ["0B", "999B", "1.0K", "10K", "64M", "3.5M", "1.0T", "16383P"]);
        assert_eq!(
            [None, Some(0.0), Some(99.94), Some(250.4)].map(format_percent),
            ["-", "0.0%", "99.9%", "250%"]
        );
    }
}
