//! The layer of an HTTP service: a request over loopback, to a service without and with the layer.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::thread;

use anyhow::{Result, ensure};
use http::{Request, Response};
use tenure::fence::Fences;
use tenure::fence::http::{FenceLayer, HEADER, path};
use tower_layer::Layer;
use tower_service::Service;

use super::token;
use crate::compare::Comparison;
use crate::runtime;

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let layer = FenceLayer::new(Fences::new(10), path);
    let mut plain = serve(Stock::default())?;
    let mut fenced = serve(layer.layer(Stock::default()))?;
    let text = format!("PUT /stock/42 HTTP/1.1\r\n{HEADER}: {}\r\n\r\n", token());
    Comparison::run(
        rounds,
        10,
        vec![
            ("http: PUT", Box::new(|| request(&mut plain, &text))),
            ("http: PUT through the layer", Box::new(|| request(&mut fenced, &text))),
        ],
    )
}

/// A number that a request changes.
#[derive(Clone, Default)]
struct Stock(Arc<AtomicI64>);

impl Service<Request<()>> for Stock {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::default()))
    }
}

/// Starts a minimal server for one connection, and returns the client's side.
fn serve<S>(mut service: S) -> Result<BufReader<TcpStream>>
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    client.set_nodelay(true)?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    // Ends with the connection.
    drop(thread::spawn(move || -> Result<()> {
        let runtime = runtime()?;
        let mut stream = BufReader::new(stream);
        while let Some(value) = head(&mut stream)? {
            let request = Request::put("/stock/42").header(HEADER, value).body(())?;
            let Ok(response) = runtime.block_on(service.call(request));
            let status = response.status();
            write!(stream.get_mut(), "HTTP/1.1 {status}\r\n{HEADER}: 7\r\n\r\n")?;
        }
        Ok(())
    }));
    Ok(BufReader::new(client))
}

/// Reads the head of a message. Returns the token in it, or `None` at the end of the connection.
fn head(stream: &mut BufReader<TcpStream>) -> Result<Option<String>> {
    let mut line = String::new();
    let mut token = None;
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 || line == "\r\n" {
            return Ok(token);
        }
        if let Some(value) = line.strip_prefix("fencing-token: ") {
            token = Some(value.trim_end().to_owned());
        }
    }
}

/// Sends a request and reads the response.
fn request(stream: &mut BufReader<TcpStream>, text: &str) -> Result<()> {
    stream.get_mut().write_all(text.as_bytes())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    ensure!(line.contains(" 200"), "{line}");
    head(stream).map(drop)
}
