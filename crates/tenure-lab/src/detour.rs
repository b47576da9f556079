//! A name that leads to one server now and to another later: new connections go where it leads,
//! those that are there stay.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

/// A port on loopback that stands for the name of a server. Dropping it closes the port;
/// connections end with their peers.
#[derive(Debug)]
pub(crate) struct Detour {
    port: u16,
    way: Arc<Way>,
}

#[derive(Debug)]
struct Way {
    target: AtomicU16,
    closed: AtomicBool,
}

impl Detour {
    /// A name that leads to this port on loopback.
    pub(crate) fn start(target: u16) -> io::Result<Detour> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (target, closed) = (AtomicU16::new(target), AtomicBool::new(false));
        let way = Arc::new(Way { target, closed });
        let serving = way.clone();
        thread::spawn(move || serving.serve(&listener));
        Ok(Detour { port, way })
    }

    /// `host:port` that clients connect to.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// From now on, new connections go there.
    pub(crate) fn lead_to(&self, target: u16) {
        self.way.target.store(target, Ordering::SeqCst);
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        self.way.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; if that fails, it has ended by itself.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl Way {
    fn serve(&self, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let target = self.target.load(Ordering::SeqCst);
            // Whoever cannot be passed on is hung up on, as at a port where nobody listens.
            let _hung_up = client.and_then(|client| pass_on(client, target));
        }
    }
}

/// Copies bytes both ways, each on a thread of its own.
fn pass_on(client: TcpStream, target: u16) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
    for side in [&client, &server] {
        side.set_nodelay(true)?;
    }
    let (client_too, server_too) = (client.try_clone()?, server.try_clone()?);
    for (mut from, mut to) in [(client, server), (server_too, client_too)] {
        thread::spawn(move || {
            // Either end may go first; the other is told, and that is all there is to do.
            let _ended = io::copy(&mut from, &mut to);
            let _told = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
