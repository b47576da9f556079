//! Behind an HTTP service with the layer, and a client of it. The service runs in the test.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use futures_util::future::{Ready, ready};
use http::{HeaderMap, Method, Request, Response};
use tenure::FencingToken;
use tenure::fence::http::{FenceLayer, HEADER, Shown, path, set, set_shared, shown};
use tenure::fence::{Fences, Seen};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tower_layer::Layer;
use tower_service::Service;

use super::{FenceResult, Register};

/// The service: numbers by path.
#[derive(Clone, Default)]
pub(crate) struct Numbers(Arc<Mutex<HashMap<String, i64>>>);

impl Numbers {
    /// Whether no request has come to the service.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Service<Request<String>> for Numbers {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.entry(request.uri().path().to_owned()).or_default();
        if let (&Method::PUT, Ok(new)) = (request.method(), request.body().parse()) {
            *number = new;
        }
        ready(Ok(Response::new(number.to_string())))
    }
}

/// Starts the service; it ends with the runtime. Requests without a token pass, for the cases that
/// show what happens then.
pub(crate) async fn serve() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let service = FenceLayer::new(Fences::new(1000), path).optional().layer(Numbers::default());
    drop(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut service = service.clone();
            drop(tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                // Ends when the client disconnects.
                while let Ok(request) = next_request(&mut stream).await {
                    let Ok(response) = service.call(request).await;
                    let status = response.status();
                    let body = response.body();
                    let seen = response.headers().get(HEADER).and_then(|seen| seen.to_str().ok());
                    let text = format!(
                        "HTTP/1.1 {status}\r\n{HEADER}: {}\r\ncontent-length: {}\r\n\r\n{body}",
                        seen.unwrap_or_default(),
                        body.len()
                    );
                    if stream.write_all(text.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }));
        }
    }));
    Ok(url)
}

async fn next_request(stream: &mut BufReader<TcpStream>) -> Result<Request<String>> {
    let (line, headers, body) = next_message(stream).await?;
    let mut words = line.split(' ');
    let method = words.next().context("a method")?;
    let path = words.next().context("a path")?;
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    Ok(request.body(body)?)
}

pub(crate) type Message = (String, Vec<(String, String)>, String);

pub(crate) async fn next_message(stream: &mut BufReader<TcpStream>) -> Result<Message> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "the other side has disconnected");
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let first = lines.remove(0);
    let headers: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.context("a length")?.1.parse()?];
    stream.read_exact(&mut body).await?;
    Ok((first, headers, String::from_utf8(body)?))
}

struct Remote {
    stream: BufReader<TcpStream>,
    name: String,
}

pub(super) async fn open(address: &str, name: &str) -> Result<impl Register + use<>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Remote { stream: BufReader::new(stream), name: name.to_owned() })
}

impl Remote {
    async fn request(
        &mut self,
        method: &str,
        body: String,
        token: Option<Shown>,
    ) -> FenceResult<String> {
        let mut shown_headers = HeaderMap::new();
        match token {
            Some(Shown::Exclusive(token)) => set(&mut shown_headers, token),
            Some(Shown::Shared(token)) => set_shared(&mut shown_headers, token),
            None => {}
        }
        let header = shown_headers.get(HEADER).map(|value| value.to_str()).transpose()?;
        let header = header.map(|value| format!("{HEADER}: {value}\r\n")).unwrap_or_default();
        let name = &self.name;
        let length = body.len();
        let text =
            format!("{method} /{name} HTTP/1.1\r\n{header}content-length: {length}\r\n\r\n{body}");
        self.stream.write_all(text.as_bytes()).await?;
        let (line, headers, body) = next_message(&mut self.stream).await?;
        match (line.split(' ').nth(1), token) {
            (Some("200"), _) => Ok(Ok(body)),
            (Some("412"), Some(token)) => {
                let seen = headers.iter().find(|(name, _)| *name == HEADER.as_str());
                let value = seen.context("the token seen")?.1.parse()?;
                let seen = shown(&HeaderMap::from_iter([(HEADER, value)]));
                let mut fence = Seen::new();
                match seen.map_err(anyhow::Error::msg)?.context("a token")? {
                    Shown::Exclusive(seen) => fence.admit(seen)?,
                    Shown::Shared(seen) => fence.admit_shared(seen)?,
                }
                Ok(Err(fence.admit(token.token()).err().context("a higher token")?))
            }
            _ => bail!("{line}: {body}"),
        }
    }
}

impl Remote {
    async fn number(&mut self, shown: Option<Shown>) -> FenceResult<i64> {
        match self.request("GET", String::new(), shown).await? {
            Ok(text) => Ok(Ok(text.parse()?)),
            Err(stale) => Ok(Err(stale)),
        }
    }
}

#[async_trait]
impl Register for Remote {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        let shown = token.map(Shown::Exclusive);
        self.number(shown).await
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        self.number(Some(Shown::Shared(token))).await
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        let shown = token.map(Shown::Exclusive);
        Ok(self.request("PUT", number.to_string(), shown).await?.map(drop))
    }

    async fn spoil(&mut self, _: Option<&str>) -> Result<()> {
        bail!("its fence is in memory")
    }
}
