//! Reads a private key for TLS, of a server or of a client, and says why one cannot be used.

use std::path::Path;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use crate::der::{Der, INTEGER, OCTET_STRING, SEQUENCE};

/// Reads the first key of a PEM file.
///
/// # Errors
/// The reason as text.
pub fn read(path: &Path, provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, String> {
    let labelled = PrivateKeyDer::from_pem_file(path).map_err(|error| error.to_string())?;
    // Some programs label a key in PKCS#8 as one in PKCS#1, so the content decides.
    let by_content = PrivateKeyDer::try_from(labelled.secret_der().to_vec());
    let key = by_content.unwrap_or(labelled);
    match provider.key_provider.load_private_key(key.clone_key()) {
        Ok(_) => Ok(key),
        Err(error) => Err(match rsa_bits(key.secret_der()) {
            Some(bits) if !(2048..=4096).contains(&bits) => {
                format!("an RSA key has 2048 to 4096 bits, and this one has {bits}")
            }
            _ => error.to_string(),
        }),
    }
}

/// The length of an RSA key, in PKCS#1 or PKCS#8. `None` for other keys.
///
/// ```text
///   PKCS#1   SEQUENCE { INTEGER version, INTEGER modulus, … }
///   PKCS#8   SEQUENCE { INTEGER version, SEQUENCE algorithm, OCTET STRING { PKCS#1 } }
/// ```
fn rsa_bits(key: &[u8]) -> Option<usize> {
    let mut fields = Der(Der(key).next(SEQUENCE)?);
    fields.next(INTEGER)?;
    match fields.next_any()? {
        (INTEGER, modulus) => {
            let zeroes = modulus.iter().take_while(|byte| **byte == 0).count();
            let (first, rest) = modulus[zeroes..].split_first()?;
            Some(8 * rest.len() + first.ilog2() as usize + 1)
        }
        (SEQUENCE, _) => rsa_bits(fields.next(OCTET_STRING)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_pem(pem: &str) -> Result<PrivateKeyDer<'static>, String> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(pem.as_bytes()).expect("it is written");
        read(file.path(), &rustls::crypto::ring::default_provider())
    }

    #[test]
    fn a_key_is_read_whatever_kind_its_label_names() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = key.serialize_pem();
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
            let read = read_pem(&pem.replace("PRIVATE KEY", label)).expect(label);
            assert_eq!(read.secret_der(), key.serialized_der());
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_a_reason() {
        for text in [
            "",
            "PRIVATE KEY",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let reason = read_pem(text).expect_err("no key");
            assert!(!reason.is_empty());
        }
    }
}
