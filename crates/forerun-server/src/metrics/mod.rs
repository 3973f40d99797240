//! Metrics for Prometheus: the text format and the HTTP server for it.

mod http;
mod text;

pub(crate) use http::Endpoint;
pub(crate) use text::Exporter;
