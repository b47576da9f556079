//! A TCP forwarder that stands for the DNS name of a server: it can be pointed at another server.
//! As with a name, only new connections go to the new server; existing ones stay.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

/// A port on loopback that forwards to another one. Dropping it closes the port; connections end
/// with their peers.
#[derive(Debug)]
pub(crate) struct Forwarder {
    port: u16,
    state: Arc<ForwarderState>,
}

#[derive(Debug)]
struct ForwarderState {
    target: AtomicU16,
    closed: AtomicBool,
}

impl Forwarder {
    /// Forwards to this port on loopback.
    pub(crate) fn start(target: u16) -> io::Result<Forwarder> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let target = AtomicU16::new(target);
        let state = Arc::new(ForwarderState { target, closed: AtomicBool::new(false) });
        let accepting = state.clone();
        thread::spawn(move || accepting.accept(&listener));
        Ok(Forwarder { port, state })
    }

    /// `host:port` that clients connect to.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Forwards new connections to this port from now on.
    pub(crate) fn forward_to(&self, target: u16) {
        self.state.target.store(target, Ordering::SeqCst);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; fails if that thread has ended already.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl ForwarderState {
    fn accept(&self, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let target = self.target.load(Ordering::SeqCst);
            // On failure the client's connection is closed, as at a port without a listener.
            let _ignored = client.and_then(|client| forward(client, target));
        }
    }
}

/// Copies bytes in both directions, each on a thread of its own.
fn forward(client: TcpStream, target: u16) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
    for side in [&client, &server] {
        side.set_nodelay(true)?;
    }
    let to_client = (server.try_clone()?, client.try_clone()?);
    for (mut from, mut to) in [(client, server), to_client] {
        thread::spawn(move || {
            // Either side may end first; the end is passed on to the other side.
            let _ignored = io::copy(&mut from, &mut to);
            let _ignored = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
