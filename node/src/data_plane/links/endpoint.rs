//! The data plane's sockets: one for QUIC, shaped, and the listener for lifelines beside it.

use super::{LinkError, LinksConfig, accept::Servers, lifeline, shaping, tuning, uplink::Uplink};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Ports tried for one whose neighbour is free, where any will do.
const PORTS_TRIED: usize = 8;
/// Socket buffers: the usual 208 KiB lose packets at rates a LAN has.
const SOCKET_BUFFER: usize = 4 << 20;

/// The data plane's socket, and the listener beside it; where any port will do, one whose neighbour is free.
pub(super) fn with_lifelines(
    config: &LinksConfig,
    servers: &Servers,
    uplink: &Arc<Uplink>,
    stop: &CancellationToken,
) -> Result<(quinn::Endpoint, Option<tokio::net::TcpListener>), LinkError> {
    let mut tries = 1..=PORTS_TRIED;
    loop {
        let endpoint = endpoint(config, servers, uplink, stop)?;
        let is_last = config.listen.port() != 0 || tries.next().is_none();
        let address = endpoint.local_addr().unwrap_or(config.listen);
        match lifeline::listen(address) {
            Ok(lifelines) => return Ok((endpoint, Some(lifelines))),
            Err(error) if is_last => {
                let address = lifeline::beside(address);
                tracing::warn!(%address, %error, "no lifelines: others will notice later if this peer dies");
                return Ok((endpoint, None));
            }
            // Somebody has the next number, on which nothing depends: another port will do.
            Err(_) => {}
        }
    }
}

fn endpoint(
    config: &LinksConfig,
    servers: &Servers,
    uplink: &Arc<Uplink>,
    stop: &CancellationToken,
) -> Result<quinn::Endpoint, LinkError> {
    let server = Some(quinn::ServerConfig::clone(&servers.far));
    let bind = |error: std::io::Error| LinkError::Bind {
        address: config.listen,
        in_use: error.kind() == std::io::ErrorKind::AddrInUse,
        error: crate::plain::io_error(&error),
    };
    let socket = socket(config.listen).map_err(bind)?;
    let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
    let settings = settings();
    let socket = runtime.wrap_udp_socket(socket).map_err(bind)?;
    let (shaping, faults) = (config.shaping.unwrap_or_default(), config.faults.clone());
    let shaped = shaping::Shaped::start(socket, shaping, uplink.clone(), faults, stop.clone());
    quinn::Endpoint::new_with_abstract_socket(settings, server, shaped, runtime).map_err(bind)
}

pub(super) fn settings() -> quinn::EndpointConfig {
    let mut settings = quinn::EndpointConfig::default();
    // The largest that may come; the constant is within what the setting allows.
    let _ = settings.max_udp_payload_size(tuning::LARGEST);
    settings
}

pub(super) fn socket(listen: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    let given = socket.recv_buffer_size()?;
    if given < SOCKET_BUFFER {
        tracing::info!(
            given,
            wanted = SOCKET_BUFFER,
            "socket buffer is capped (net.core.rmem_max): fast links may lose packets"
        );
    }
    if listen.is_ipv6() {
        // Whatever the system's setting is: `[::]` is IPv4 as well.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    Ok(socket.into())
}
