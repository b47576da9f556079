//! One request, or one stream, over one channel. Nothing here is retried.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream::{self, BoxStream, StreamExt};
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request};
use prost::Message;

use super::channel::{Channel, MemberAddress};
use super::login::Token;
use super::status::{Code, Status};
use super::wire::{H2Wire, broken};

/// The longest response that is accepted: listings of servers with much foreign data are long.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Before each message: a flag for compression, and its length.
const PREFIX_BYTES: usize = 5;

/// The path of a method of etcd's API.
#[derive(Clone, Copy)]
pub(crate) struct Method(pub(crate) &'static str);

/// A stream in both directions.
pub(crate) struct Duplex<Q, A> {
    /// Of the channel that it was opened on.
    pub(crate) generation: u64,
    pub(crate) requests: Requests<Q>,
    pub(crate) responses: BoxStream<'static, Result<A, Status>>,
}

/// The requests of a stream.
pub(crate) struct Requests<Q> {
    wire: Arc<H2Wire>,
    stream: SendStream<Bytes>,
    messages: PhantomData<fn(Q)>,
}

impl<Q: Message> Requests<Q> {
    /// Sends one. Fails if the stream has ended.
    pub(crate) fn send(&mut self, request: &Q) -> Result<(), Status> {
        self.wire.quietly(|| self.stream.send_data(encode(request), false)).map_err(broken)
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
    let wire = channel.wire().await?;
    let head = head(&channel.endpoint, token, method);
    let (response, _) = wire.send(head, Some(encode(&request)))?;
    let mut responses = Responses::new(wire, response);
    let message = responses.next().await?;
    let message = message.ok_or_else(|| Status::new(Code::Internal, "an empty response"))?;
    if responses.next().await?.is_some() {
        return Err(Status::new(Code::Internal, "several responses to one request"));
    }
    decode(message)
}

/// Opens a stream. The server sends nothing before it has got a first request.
pub(super) async fn open_stream<Q, A>(
    channel: &Channel,
    token: &Token,
    generation: u64,
    method: Method,
) -> Result<Duplex<Q, A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let wire = channel.wire().await?;
    let (response, stream) = wire.send(head(&channel.endpoint, token, method), None)?;
    let responses = Responses::new(wire.clone(), response);
    let responses = stream::try_unfold(responses, |mut responses| async {
        let message = responses.next().await?;
        message.map(|message| Ok((decode(message)?, responses))).transpose()
    });
    let requests = Requests { wire, stream, messages: PhantomData };
    Ok(Duplex { generation, requests, responses: responses.boxed() })
}

/// The headers of a request: the login token, and `hasleader`: a member without a leader then
/// refuses at once instead of waiting for one.
fn head(endpoint: &MemberAddress, token: &Token, method: Method) -> Request<()> {
    const AGENT: &str = concat!("tenure/", env!("CARGO_PKG_VERSION"));
    let (mut parts, ()): (Parts, ()) = Request::new(()).into_parts();
    parts.method = hyper::Method::POST;
    parts.uri = endpoint.uri(method.0);
    let headers = &mut parts.headers;
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(HeaderName::from_static("hasleader"), HeaderValue::from_static("true"));
    if let Token::Given(token) = token {
        headers.insert(HeaderName::from_static("token"), token.clone());
    }
    Request::from_parts(parts, ())
}

fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.into()
}

fn decode<A: Message + Default>(message: Bytes) -> Result<A, Status> {
    A::decode(message).map_err(|error| Status::new(Code::Internal, error.to_string()))
}

/// The responses to a request. Dropped before the last one, it cancels the request.
struct Responses {
    wire: Arc<H2Wire>,
    /// `None` while it is being dropped.
    incoming: Option<Incoming>,
    unread: BytesMut,
}

enum Incoming {
    Head(ResponseFuture),
    Body(RecvStream),
    /// There is no more.
    Ended,
}

impl Responses {
    fn new(wire: Arc<H2Wire>, response: ResponseFuture) -> Responses {
        let incoming = Some(Incoming::Head(response));
        Responses { wire, incoming, unread: BytesMut::new() }
    }

    /// The next message, or `None` after the last.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = take_message(&mut self.unread)? {
                return Ok(Some(message));
            }
            match &mut self.incoming {
                Some(Incoming::Head(response)) => {
                    let (head, body) = response.await.map_err(broken)?.into_parts();
                    let ended = check_head(head.status.as_u16(), &head.headers)?;
                    self.incoming =
                        Some(if ended { Incoming::Ended } else { Incoming::Body(body) });
                }
                Some(Incoming::Body(body)) => match body.data().await {
                    Some(bytes) => {
                        let bytes = bytes.map_err(broken)?;
                        body.flow_control().release_capacity(bytes.len()).map_err(broken)?;
                        self.unread.extend_from_slice(&bytes);
                    }
                    None => {
                        let trailers = body.trailers().await.map_err(broken)?.unwrap_or_default();
                        self.incoming = Some(Incoming::Ended);
                        let missing =
                            || Err(Status::new(Code::Unknown, "a response without an end"));
                        Status::from_trailers(&trailers).unwrap_or_else(missing)?;
                    }
                },
                Some(Incoming::Ended) | None => return Ok(None),
            }
        }
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        self.wire.end_stream();
        self.wire.quietly(|| self.incoming = None);
    }
}

/// Whether the response ends with its head.
fn check_head(status: u16, headers: &HeaderMap) -> Result<bool, Status> {
    match Status::from_trailers(headers) {
        Some(ended) => ended.map(|()| true),
        None if status == 200 => Ok(false),
        None => Err(Status::from_http(status)),
    }
}

/// Takes the next message out of what was received, if it is complete.
fn take_message(unread: &mut BytesMut) -> Result<Option<Bytes>, Status> {
    let Some(mut prefix) = unread.get(..PREFIX_BYTES) else { return Ok(None) };
    let is_compressed = prefix.get_u8() != 0;
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if is_compressed || length > MAX_RESPONSE_BYTES {
        let message = format!("a response of {length} bytes, compressed: {is_compressed}");
        return Err(Status::new(Code::OutOfRange, message));
    }
    if unread.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    unread.advance(PREFIX_BYTES);
    Ok(Some(unread.split_to(length).freeze()))
}
