//! Metrics for Prometheus: the text and the small HTTP server that gives it.

mod http;
mod text;

pub(crate) use http::Endpoint;
pub(crate) use text::Metrics;
