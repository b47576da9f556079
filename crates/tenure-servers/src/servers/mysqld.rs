//! What MySQL and MariaDB have in common: their options, how the data folder is made, and how the
//! server is started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{StartContext, argv};
use crate::error::{Error, Result};
use crate::node::{Node, START_LIMIT};
use crate::ports::Port;
use crate::process::Launch;
use crate::provision::Program;

/// The server's socket, in the folder of its data. The path of a socket has at most 107 bytes, so
/// the server gets it relative to that folder.
pub(crate) const SOCKET: &str = "m.sock";

/// One server before it is started.
pub(super) struct Mysqld<'a> {
    pub(super) context: &'a StartContext<'a>,
    pub(super) program: Program,
    /// The folder of the node.
    pub(super) folder: PathBuf,
    /// The options of every run of the program.
    options: Vec<String>,
}

impl<'a> Mysqld<'a> {
    /// `share` is the folder with messages and character sets; `own` are the options that only this
    /// maker's server has.
    pub(super) fn new(
        context: &'a StartContext<'a>,
        program: Program,
        folder: PathBuf,
        share: &Path,
        own: Vec<String>,
    ) -> Self {
        let share = share.display();
        let node = folder.display();
        let mut options = vec![
            // Must be the first.
            "--no-defaults".to_owned(),
            format!("--datadir={node}/data"),
            format!("--lc-messages-dir={share}"),
            format!("--character-sets-dir={share}/charsets"),
            // A server that starts removes all temporary tables it finds, also those of others.
            format!("--tmpdir={node}"),
            "--innodb-buffer-pool-size=16M".to_owned(),
            // Containers often forbid io_uring.
            "--innodb-use-native-aio=0".to_owned(),
        ];
        options.extend(own);
        if rustix::process::geteuid().is_root() {
            options.push("--user=root".to_owned());
        }
        Self { context, program, folder, options }
    }

    /// Runs the program once to make the data folder. `mode` is the option for that, `script` what
    /// it reads from standard input.
    pub(super) fn initialize(
        &self,
        mode: &str,
        script: Option<PathBuf>,
        limit: Duration,
    ) -> Result<()> {
        let mut options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        options.extend([mode, "--skip-log-bin"]);
        options.extend(["--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"]);
        options.push("--innodb-flush-method=nosync");
        let log = self.context.dir.join("initialize.log");
        let mut launch = Launch::new(argv(self.program.argv(None), &options), &self.folder, log);
        launch.stdin = script;
        let doing = || format!("initialize {}", self.context.topology);
        launch.run(limit).map_err(|reason| Error::failed(doing(), reason))
    }

    /// Starts the server and waits until it responds.
    pub(super) fn start(&self, port: Port, extra: &[&str]) -> Result<Vec<Node>> {
        let start_options = &self.context.options;
        let number = format!("--port={}", port.number());
        let socket = format!("--socket={SOCKET}");
        let mut options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        options.extend(["--bind-address=127.0.0.1", &number, "--pid-file=server.pid", &socket]);
        options.extend(["--skip-log-bin", "--skip-name-resolve"]);
        options.extend(["--max-connections=200", "--performance-schema=0"]);
        options.extend(extra);
        if start_options.durability.skips_sync() {
            // 2 writes at each commit and syncs later; 0 would lose commits on kill -9. "Later" is
            // never: where the disk is busy, one sync can take seconds, and commits wait for it.
            options.extend(["--innodb-flush-log-at-trx-commit=2", "--skip-innodb-doublewrite"]);
            options.push("--innodb-flush-method=nosync");
        }
        let files: Vec<String> = [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")]
            .iter()
            .filter_map(|(kind, file)| {
                Some(format!("--ssl-{kind}={}", start_options.tls_file(file)?))
            })
            .collect();
        options.extend(files.iter().map(String::as_str));
        let argv = argv(self.program.argv(self.context.preload()), &options);
        let node = self.context.node("n1", vec![port], argv)?;
        node.wait_response(START_LIMIT)?;
        Ok(vec![node])
    }
}

/// The first of these folders below the program's prefix that is the one with messages.
pub(super) fn share_folder(
    program: &Program,
    candidates: &[&str],
    is_complete: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let prefix = program.prefix();
    candidates.iter().map(|folder| prefix.join(folder)).find(|folder| is_complete(folder))
}
