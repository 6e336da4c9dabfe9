//! The two forms in which Prometheus reads metrics, and which of them a scraper asks for.

use axum::http::{HeaderMap, header};
use prometheus_client::{encoding::text, registry::Registry};
use std::collections::BTreeSet;

/// A form of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum ExpositionFormat {
    /// Prometheus' text, version 0.0.4: what is read by everything.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// What a request accepts: OpenMetrics where it is named, and liked no less than text.
    #[must_use]
    pub fn accepted(headers: &HeaderMap) -> Self {
        let ranges: Vec<(&str, f32)> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(range)
            .collect();
        let weight = |name: &str| {
            let named = ranges.iter().filter(|(range, _)| range.eq_ignore_ascii_case(name));
            named.map(|(_, weight)| *weight).fold(0.0, f32::max)
        };
        let open = weight("application/openmetrics-text");
        if open > 0.0 && open >= weight("text/plain") { Self::OpenMetrics } else { Self::Text }
    }

    /// How it is called in a header.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A media range, and its weight.
fn range(text: &str) -> (&str, f32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let weight = parts.filter_map(|part| part.strip_prefix("q=")).find_map(|weight| weight.parse().ok());
    (name, weight.unwrap_or(1.0))
}

/// All that is registered, in that form.
pub(super) fn encode(registry: &Registry, format: ExpositionFormat) -> String {
    let mut open = String::new();
    // Writing into a string does not fail.
    let _ = text::encode(&mut open, registry);
    match format {
        ExpositionFormat::OpenMetrics => open,
        ExpositionFormat::Text => as_text(&open),
    }
}

/// OpenMetrics calls a counter's family by its name without `_total`, and has an end.
fn as_text(open: &str) -> String {
    let types = open.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> = types.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(open.len());
    for line in open.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let described =
            ["# HELP ", "# TYPE "].iter().find_map(|kind| Some((kind, line.strip_prefix(kind)?.split_once(' ')?)));
        match described {
            Some((kind, (name, said))) if counters.contains(name) => {
                [kind, name, "_total ", said].iter().for_each(|part| text.push_str(part));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn accepted(accept: &'static str) -> ExpositionFormat {
        ExpositionFormat::accepted(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
    }

    #[test]
    fn openmetrics_is_for_who_asks_for_it() {
        assert_eq!(ExpositionFormat::accepted(&HeaderMap::new()), ExpositionFormat::Text);
        for text in [
            "*/*",
            "text/plain",
            "text/html, application/xhtml+xml, */*;q=0.8",
            "application/openmetrics-text;version=1.0.0;q=0",
            "application/openmetrics-text;q=0.2, text/plain;version=0.0.4;q=0.9",
            "application/openmetrics-text;q=x;q=0",
        ] {
            assert_eq!(accepted(text), ExpositionFormat::Text, "{text}");
        }
        // As Prometheus 2 and 3 ask.
        for open in [
            "application/openmetrics-text; version=1.0.0",
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        ] {
            assert_eq!(accepted(open), ExpositionFormat::OpenMetrics, "{open}");
        }
    }

    #[test]
    fn a_counter_is_called_by_its_whole_name_in_text() {
        let open = "# HELP a_b Of a.\n# TYPE a_b counter\n# UNIT a_b seconds\na_b_total 1\n# HELP g Of g.\n# TYPE g gauge\ng 1\n# EOF\n";
        let text =
            "# HELP a_b_total Of a.\n# TYPE a_b_total counter\na_b_total 1\n# HELP g Of g.\n# TYPE g gauge\ng 1\n";
        assert_eq!(as_text(open), text);
    }
}
