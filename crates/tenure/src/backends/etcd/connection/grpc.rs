//! One request, or one stream, over one channel. Nothing here is retried.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use prost::Message;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::login::Token;
use crate::backends::etcd::error::with_causes;
use crate::error::{Error, ErrorKind, Result};
use crate::support::tls::Dial;

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// HTTP/2 pings notice a frozen server while no request is under way that would. Servers close
/// connections that ping more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_LIMIT: Duration = Duration::from_secs(3);
/// The longest response that is accepted: listings of servers with much foreign data are long.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// The path of a method of etcd's API.
#[derive(Clone, Copy)]
pub(crate) struct Method(pub(crate) &'static str);

/// A stream in both directions.
pub(crate) struct Duplex<Q, A> {
    /// Of the channel that it was opened on.
    pub(crate) generation: u64,
    pub(crate) requests: mpsc::UnboundedSender<Q>,
    pub(crate) responses: BoxStream<'static, Result<A, Status>>,
}

/// The address of one member.
pub(super) fn endpoint((host, port): &(String, u16)) -> Result<Endpoint> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    // `http` also where it is encrypted, because that is done by `Dial`, not by tonic.
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("`{}` is not a host", host.escape_debug()))
    })?;
    Ok(endpoint
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(false))
}

/// A channel that connects when it is first used.
pub(super) fn channel(endpoint: &Endpoint, dial: Option<&Dial>) -> Channel {
    match dial {
        Some(dial) => endpoint.connect_with_connector_lazy(dial.clone()),
        None => endpoint.connect_lazy(),
    }
}

/// Sends one request and reads its response.
pub(super) async fn unary<Q, A>(
    channel: &Channel,
    token: &Token,
    method: Method,
    request: Q,
) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES);
    ready(&mut grpc).await?;
    let path = PathAndQuery::from_static(method.0);
    let request = with_metadata(Request::new(request), token);
    let response = grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?;
    Ok(response.into_inner())
}

/// Opens a stream. The server sends nothing before it has got a first request.
pub(super) fn open_stream<Q, A>(
    channel: Channel,
    token: &Token,
    generation: u64,
    method: Method,
) -> Duplex<Q, A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let (requests, mut outgoing) = mpsc::unbounded_channel();
    let outgoing = stream::poll_fn(move |context| outgoing.poll_recv(context));
    let request = with_metadata(Request::new(outgoing), token);
    let opening = async move {
        let mut grpc = Grpc::new(channel);
        ready(&mut grpc).await?;
        let path = PathAndQuery::from_static(method.0);
        let codec = ProstCodec::<Q, A>::default();
        grpc.streaming(request, path, codec).await.map(Response::into_inner)
    };
    Duplex { generation, requests, responses: stream::once(opening).try_flatten().boxed() }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| {
        let mut status = Status::unavailable(with_causes(&error));
        status.set_source(Arc::new(error));
        status
    })
}

/// Adds the login token, and `hasleader`: a member without a leader then refuses at once instead of
/// waiting for one.
fn with_metadata<T>(mut request: Request<T>, token: &Token) -> Request<T> {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Token::Given(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
