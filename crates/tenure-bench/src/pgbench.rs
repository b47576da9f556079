//! `pgbench`, a client in C: what PostgreSQL itself can do. Every turn is a process of its own, so
//! that its use of the CPU is not known; the time to connect does not count.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;
use tenure_servers::Node;

use crate::sql_recording::login;
use crate::warm::{Entry, Subject, Timing};

/// A script and where it is executed.
pub(crate) struct Pgbench {
    script: NamedTempFile,
    address: (String, u16),
    login: (String, String, String),
}

impl Pgbench {
    /// Statements as a subject, or why there is none.
    pub(crate) fn entry(name: &str, node: &Node, statements: &[String]) -> Entry<'static> {
        let subject = Pgbench::new(node, statements).map(|subject| Box::new(subject) as _);
        Entry { subject, ..Entry::missing(name) }
    }

    fn new(node: &Node, statements: &[String]) -> Result<Pgbench> {
        let found = Command::new("pgbench").arg("--version").output();
        found.context("there is no pgbench on this machine")?;
        let mut script = NamedTempFile::new()?;
        statements
            .iter()
            .try_for_each(|text| writeln!(script, "{};", text.trim_end_matches(';')))?;
        let address = (node.host().to_owned(), node.port());
        Ok(Pgbench { script, address, login: login(&node.url())? })
    }
}

impl Subject for Pgbench {
    fn turn(&mut self, cycles: usize, tasks: usize) -> Result<Timing> {
        let (host, port) = &self.address;
        let (user, password, database) = &self.login;
        let each = cycles.div_ceil(tasks);
        let mut command = Command::new("pgbench");
        command.args(["-n", "-M", "prepared", "-h", host, "-U", user]);
        command.args(["-p", &port.to_string(), "-c", &tasks.to_string(), "-t", &each.to_string()]);
        command.arg("-f").arg(self.script.path()).arg(database).env("PGPASSWORD", password);
        let output = command.output().context("pgbench")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let problems = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "pgbench: {}", problems.trim());
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|line| line.split(' ').next()).context("pgbench prints no tps")?;
        let seconds = (each * tasks) as f64 / rate.parse::<f64>()?;
        let elapsed = Duration::from_secs_f64(seconds);
        Ok(Timing { elapsed, p50_us: f64::NAN, p99_us: f64::NAN })
    }

    fn lasts(&self) -> bool {
        false
    }
}
