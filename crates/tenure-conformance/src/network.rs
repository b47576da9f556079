//! The way between clients and servers, which a case can cut: a proxy before every server.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure_servers::{Direction, Proxy};

/// Proxies before all servers of a store, and the URL that leads through them.
pub struct Network {
    proxies: Vec<Proxy>,
    url: String,
}

impl Network {
    /// Proxies before these ports, all of which the URL names.
    ///
    /// # Errors
    ///
    /// If a proxy cannot be started, or the URL names a port not.
    pub fn new(url: &str, ports: &[u16]) -> Result<Network> {
        let mut url = url.to_owned();
        let mut proxies = Vec::new();
        for port in ports {
            let proxy = Proxy::start(*port)?;
            let address = format!("127.0.0.1:{port}");
            ensure!(url.contains(&address), "{address} is not in the URL");
            url = url.replace(&address, &proxy.address());
            proxies.push(proxy);
        }
        Ok(Network { proxies, url })
    }

    /// The URL that leads through the proxies.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Lets nothing pass, in silence.
    pub fn cut(&self) {
        self.proxies.iter().for_each(Proxy::cut);
    }

    /// Holds requests up; responses pass.
    pub fn hold_requests(&self) {
        self.proxies.iter().for_each(|proxy| proxy.cut_one_way(Direction::ToServer));
    }

    /// Holds responses up; requests pass.
    pub fn hold_responses(&self) {
        self.proxies.iter().for_each(|proxy| proxy.cut_one_way(Direction::ToClient));
    }

    /// Tears every connection and resets new ones at once.
    pub fn refuse(&self) {
        self.proxies.iter().for_each(Proxy::refuse);
    }

    /// Tears every connection; new ones are welcome.
    pub fn reset(&self) {
        self.proxies.iter().for_each(Proxy::reset);
    }

    /// Lets every byte arrive this much later.
    pub fn delay(&self, delay: Duration) {
        self.proxies.iter().for_each(|proxy| proxy.delay(delay));
    }

    /// Swallows the next response of each server, and resets its connection.
    pub fn swallow_response(&self) {
        self.proxies.iter().for_each(|proxy| proxy.drop_response(1));
    }

    /// Ends every fault, and lets through what was held up.
    pub fn heal(&self) {
        self.proxies.iter().for_each(Proxy::heal);
    }
}
