//! The way to one member: a connection that is made at its first use, and again after it broke.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hyper::Uri;
use hyper::http::uri::{Authority, Parts, PathAndQuery, Scheme};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::status::Status;
use super::wire::{H2Wire, broken};
use crate::backends::etcd::error::with_causes;
use crate::error::{Error, ErrorKind, Result};
use crate::support::sync::Mutex;
use crate::support::tls::{Dial, Stream};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The address of one member.
#[derive(Clone, Debug)]
pub(super) struct MemberAddress(Authority);

impl MemberAddress {
    pub(super) fn new((host, port): &(String, u16)) -> Result<MemberAddress> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let authority = format!("{host}:{port}").parse().map_err(|_| {
            Error::new(ErrorKind::Invalid, format!("`{}` is not a host", host.escape_debug()))
        })?;
        Ok(MemberAddress(authority))
    }

    pub(super) fn host(&self) -> &str {
        self.0.as_str()
    }

    /// The address of a method of this member.
    pub(super) fn uri(&self, path: &'static str) -> Uri {
        let mut parts = Parts::default();
        // `http` also where it is encrypted: that is done by `Dial`.
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.0.clone());
        parts.path_and_query = Some(PathAndQuery::from_static(path));
        Uri::from_parts(parts).unwrap_or_default()
    }
}

type Connecting = Shared<BoxFuture<'static, Result<Arc<H2Wire>, Status>>>;

/// A connection to a member, shared by all who use it.
#[derive(Clone)]
pub(super) struct Channel {
    pub(super) endpoint: MemberAddress,
    dial: Dial,
    /// The connection, once it is made. A caller that waits for it may stall, so that a task of the
    /// background makes it.
    wire: Arc<Mutex<Option<Connecting>>>,
}

impl Channel {
    pub(super) fn new(endpoint: &MemberAddress, dial: &Dial) -> Channel {
        Channel { endpoint: endpoint.clone(), dial: dial.clone(), wire: Arc::default() }
    }

    /// The open connection; makes it if there is none. Must be called within a runtime.
    pub(super) async fn wire(&self) -> Result<Arc<H2Wire>, Status> {
        let connecting = {
            let mut wire = self.wire.lock();
            match &*wire {
                Some(known) => match known.peek() {
                    Some(Ok(open)) if !open.has_ended() => return Ok(open.clone()),
                    Some(_ended) => self.connect(&mut wire),
                    None => known.clone(),
                },
                None => self.connect(&mut wire),
            }
        };
        connecting.await
    }

    fn connect(&self, wire: &mut Option<Connecting>) -> Connecting {
        let connecting = tokio::spawn(connect(self.dial.clone(), self.endpoint.uri("/")));
        let connecting = async move {
            let ended =
                |error| Status::unreachable("the client has ended", Arc::new(error) as Arc<_>);
            connecting.await.map_err(ended)?
        };
        wire.insert(connecting.boxed().shared()).clone()
    }
}

async fn connect(mut dial: Dial, uri: Uri) -> Result<Arc<H2Wire>, Status> {
    let connecting = async {
        poll_fn(|context| dial.poll_ready(context)).await.map_err(refused)?;
        let stream = dial.call(uri).await.map_err(refused)?;
        let stream: Box<dyn Stream> = Box::new(TokioIo::new(stream));
        H2Wire::start(stream).await.map(Arc::new).map_err(broken)
    };
    let connected = tokio::time::timeout(CONNECT_LIMIT, connecting).await;
    connected.unwrap_or_else(|elapsed| {
        let message = format!("no connection within {} ms", CONNECT_LIMIT.as_millis());
        Err(Status::unreachable(message, Arc::new(elapsed) as Arc<_>))
    })
}

fn refused(error: Box<dyn std::error::Error + Send + Sync>) -> Status {
    Status::unreachable(with_causes(&*error), error)
}
