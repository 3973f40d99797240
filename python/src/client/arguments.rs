//! The arguments of `Client`.

use std::path::PathBuf;
use std::time::Duration;

use forerun::client::{
    Credentials, EjectedKeys, Expiration, Placement, Protocol, ServerAddress, TlsOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::{accepted, client_exception, invalid, unknown};

/// The addresses: one text, or an iterable of texts.
pub(crate) fn servers(object: &Bound<'_, PyAny>) -> PyResult<Vec<ServerAddress>> {
    let parse = |text: &Bound<'_, PyAny>| {
        let Some(text) = accepted(text.py(), text.extract::<String>())? else {
            let shown = text.repr()?;
            return Err(invalid(format!("a server must be a str, not {shown}")));
        };
        text.parse().map_err(client_exception)
    };
    if object.is_instance_of::<PyString>() {
        return Ok(vec![parse(object)?]);
    }
    object.try_iter()?.map(|text| parse(&text?)).collect()
}

pub(crate) fn placement(name: &str) -> PyResult<Placement> {
    Ok(match name {
        "ketama" => Placement::Ketama,
        "ketama_unweighted" => Placement::KetamaUnweighted,
        "ketama_fnv1a_64" => Placement::KetamaFnv1a64,
        "rendezvous" => Placement::Rendezvous,
        other => {
            let known = "ketama, ketama_unweighted, ketama_fnv1a_64, rendezvous";
            return Err(unknown("ring", other, known));
        }
    })
}

pub(crate) fn protocol(name: &str) -> PyResult<Protocol> {
    match name {
        "classic" => Ok(Protocol::Classic),
        "meta" => Ok(Protocol::Meta),
        "multi_get" => Ok(Protocol::MultiGet),
        other => Err(unknown("protocol", other, "classic, meta, multi_get")),
    }
}

pub(crate) fn ejected_keys(name: &str) -> PyResult<EjectedKeys> {
    match name {
        "fail" => Ok(EjectedKeys::Fail),
        "move" => Ok(EjectedKeys::Move),
        other => Err(unknown("ejected_keys", other, "fail, move")),
    }
}

/// Whether lookups treat keys without an answer as missing.
pub(crate) fn misses_on_failure(name: &str) -> PyResult<bool> {
    match name {
        "raise" => Ok(false),
        "miss" => Ok(true),
        other => Err(unknown("on_failure", other, "raise, miss")),
    }
}

pub(crate) fn credentials(
    user: Option<String>,
    password: Option<String>,
) -> PyResult<Option<Credentials>> {
    match (user, password) {
        (Some(user), Some(password)) => Ok(Some(Credentials::new(user, password))),
        (None, None) => Ok(None),
        _ => Err(invalid("`user` and `password` must be given together")),
    }
}

/// The files for TLS, as Python passes them.
pub(crate) struct TlsFiles {
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) server_name: Option<String>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

pub(crate) fn tls(files: TlsFiles) -> PyResult<Option<TlsOptions>> {
    let certificate = match (files.certificate, files.key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            let what = "`tls_cert_file` and `tls_key_file` must be given together";
            return Err(invalid(what));
        }
    };
    let Some(authorities) = files.authorities else {
        return if certificate.is_some() || files.server_name.is_some() {
            Err(invalid("TLS needs `tls_ca_file`"))
        } else {
            Ok(None)
        };
    };
    let tls = TlsOptions::new(authorities).server_name(files.server_name);
    Ok(Some(tls.certificate(certificate)))
}

/// When an entry with this time to live expires.
pub(crate) fn expiry(ttl_seconds: Option<u32>) -> Expiration {
    match ttl_seconds {
        None => Expiration::Never,
        Some(seconds) => Expiration::In(Duration::from_secs(u64::from(seconds))),
    }
}
