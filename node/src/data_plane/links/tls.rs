//! TLS as libp2p has it, so that the far end's [`PeerId`] is proven, but for the order of ciphers: libp2p's own puts
//! ChaCha20 first, which costs half as much again as AES on every processor that knows AES.

use super::{LinkError, peer_of_certificates};
use crate::store::identity::Identity;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;
use tsnode_protocol::{PeerId, stream};

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// For dialling `peer`, and nobody else.
pub(super) fn client(identity: &Identity, peer: PeerId) -> Result<QuicClientConfig, LinkError> {
    QuicClientConfig::try_from(client_config(identity, peer)?).map_err(failed)
}

/// For being dialled by anyone who shows who it is.
pub(super) fn server(identity: &Identity) -> Result<QuicServerConfig, LinkError> {
    QuicServerConfig::try_from(server_config(identity)?).map_err(failed)
}

pub(super) fn client_config(identity: &Identity, peer: PeerId) -> Result<rustls::ClientConfig, LinkError> {
    let verifier = Arc::new(Verifier { peer: Some(peer) });
    let config = rustls::ClientConfig::builder_with_provider(ciphers());
    let config = config.with_protocol_versions(VERSIONS).map_err(failed)?.dangerous();
    let config = config.with_custom_certificate_verifier(verifier);
    let mut config = config.with_client_cert_resolver(Arc::new(certificate(identity)?));
    config.alpn_protocols = vec![stream::ALPN.to_vec()];
    // rustls' default: a set SSLKEYLOGFILE must not make a peer write its session keys down.
    config.key_log = Arc::new(rustls::NoKeyLog);
    Ok(config)
}

pub(super) fn server_config(identity: &Identity) -> Result<rustls::ServerConfig, LinkError> {
    let config = rustls::ServerConfig::builder_with_provider(ciphers());
    let config = config.with_protocol_versions(VERSIONS).map_err(failed)?;
    let config = config.with_client_cert_verifier(Arc::new(Verifier { peer: None }));
    let mut config = config.with_cert_resolver(Arc::new(certificate(identity)?));
    config.alpn_protocols = vec![stream::ALPN.to_vec()];
    config.key_log = Arc::new(rustls::NoKeyLog);
    Ok(config)
}

fn ciphers() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
}

/// A certificate with libp2p's extension. rustls refuses that extension where it is handed a certificate, since it is
/// marked critical; behind a resolver it does not look.
fn certificate(identity: &Identity) -> Result<SingleCertAndKey, LinkError> {
    let (certificate, key) = libp2p_tls::certificate::generate(&identity.libp2p_keypair()).map_err(failed)?;
    let key = aws_lc_rs::sign::any_ecdsa_type(&key).map_err(failed)?;
    Ok(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key)))
}

fn failed(error: impl std::fmt::Display) -> LinkError {
    LinkError::Certificate(error.to_string())
}

/// Holds certificates against libp2p's rules: exactly one, signed by itself and by the key that is the peer's id.
#[derive(Debug)]
struct Verifier {
    /// Who must be at the far end; anyone may who dials.
    peer: Option<PeerId>,
}

impl Verifier {
    fn check(&self, certificate: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let refused = || Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        let shown = peer_of_certificates(std::slice::from_ref(certificate)).ok_or_else(refused)?;
        let expected = self.peer.is_none_or(|peer| peer == shown);
        if others.is_empty() && expected { Ok(()) } else { Err(refused()) }
    }

    fn signed(
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let certificate = libp2p_tls::certificate::parse(certificate)?;
        certificate.verify_signature(signature.scheme, message, signature.signature())?;
        Ok(HandshakeSignatureValid::assertion())
    }

    fn no_older_version() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is spoken here".into()))
    }

    fn schemes() -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
        ]
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::no_older_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::no_older_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}
