//! MySQL: the one by Oracle. Its administrator has a random password, which is in the URL.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{Site, argv, ports};
use crate::error::{Error, Result};
use crate::get::{self, Bundle, Program};
use crate::node::{Node, START_LONGEST};
use crate::process::Launch;
use crate::wire::mysql::Mysql;

pub(super) fn start(site: &Site<'_>) -> Result<Vec<Node>> {
    let program = get::program(Bundle::Mysql)?;
    let share = share(&program)?;
    let [port] = ports::<1>()?;
    let folder = site.folder("n1")?;
    let base = base(&folder, &share);

    let mut options: Vec<&str> = base.iter().map(String::as_str).collect();
    options.extend(["--initialize-insecure", "--skip-log-bin"]);
    options.extend(["--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"]);
    let log = site.dir.join("initialize.log");
    let launch = Launch::new(argv(program.argv(None), &options), &folder, log);
    // More than a second of work; several at once on a machine that is busy took a minute.
    launch.run(2 * START_LONGEST).map_err(|reason| Error::failed("make a MySQL", reason))?;
    let script = write_password(&folder).map_err(|error| site.failed(error))?;

    let (number, script) =
        (format!("--port={}", port.number()), format!("--init-file={}", script.display()));
    let socket = format!("--socket={SOCKET}");
    let mut options: Vec<&str> = base.iter().map(String::as_str).collect();
    options.extend(["--bind-address=127.0.0.1", &number, "--pid-file=mysql.pid", &script]);
    // Relative to the data: the path of a socket has at most 107 bytes.
    options.extend([&socket, "--skip-log-bin", "--skip-name-resolve"]);
    options.extend(["--max-connections=200", "--performance-schema=0"]);
    if site.options.durability.skips_sync() {
        // 2 writes at each commit and leaves syncing to later; 0 would lose commits on kill -9.
        options.extend(["--innodb-flush-log-at-trx-commit=2", "--skip-innodb-doublewrite"]);
    }
    let files: Vec<String> = [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")]
        .iter()
        .filter_map(|(kind, file)| Some(format!("--ssl-{kind}={}", site.options.tls_file(file)?)))
        .collect();
    options.extend(files.iter().map(String::as_str));
    let node = site.node("n1", vec![port], argv(program.argv(site.preload()), &options))?;
    node.wait_answer(START_LONGEST)?;
    Ok(vec![node])
}

/// Whether it works: asked over TCP too, which the first answer over the socket comes before.
pub(crate) fn ready(node: &Node) -> io::Result<()> {
    Mysql::admin(node)?.query("select 1")?;
    std::net::TcpStream::connect((node.host(), node.port())).map(drop)
}

/// With the password of its administrator.
pub(crate) fn url(node: &Node) -> String {
    let password = password(node).unwrap_or_default();
    format!("mysql://root:{password}@{}/test", node.address())
}

/// Read from the folder of the node, which nobody else can look into.
pub(crate) fn password(node: &Node) -> io::Result<String> {
    fs::read_to_string(node.dir().join(PASSWORD))
}

/// Makes a password; the script that sets it is run at every start and changes nothing the second
/// time. The server finds clients by their address, so that there are two administrators: one for
/// the socket, one for loopback.
fn write_password(folder: &Path) -> io::Result<PathBuf> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    write(&folder.join(PASSWORD), &password)?;
    let script = folder.join("start.sql");
    // One statement per line.
    let text = format!(
        "ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';\n\
         CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n\
         CREATE DATABASE IF NOT EXISTS test;\n"
    );
    write(&script, &text)?;
    Ok(script)
}

/// For this user's eyes only.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

fn base(folder: &Path, share: &Path) -> Vec<String> {
    let (folder, share) = (folder.display(), share.display());
    let mut base = vec![
        // Must be the first.
        "--no-defaults".to_owned(),
        format!("--datadir={folder}/data"),
        format!("--lc-messages-dir={share}"),
        format!("--character-sets-dir={share}/charsets"),
        format!("--plugin-dir={folder}"),
        format!("--tmpdir={folder}"),
        "--secure-file-priv=NULL".to_owned(),
        "--mysqlx=OFF".to_owned(),
        // What makes keys at every start would make a weak machine wait; the RSA key of logins
        // without encryption is made all the same.
        "--auto-generate-certs=OFF".to_owned(),
        "--innodb-buffer-pool-size=16M".to_owned(),
        "--innodb-redo-log-capacity=32M".to_owned(),
        // Often not allowed in containers.
        "--innodb-use-native-aio=0".to_owned(),
    ];
    if rustix::process::geteuid().is_root() {
        base.push("--user=root".to_owned());
    }
    base
}

/// The folder with the messages and character sets.
fn share(program: &Program) -> Result<PathBuf> {
    let prefix = program.prefix();
    let places = ["share/mysql", "share"].map(|place| prefix.join(place));
    let found = places.into_iter().find(|place| place.join("charsets").is_dir());
    found.ok_or_else(|| Error::missing("mysql", "no `charsets` for the program"))
}

/// Its socket, in the folder of its data.
pub(crate) const SOCKET: &str = "m.sock";
const PASSWORD: &str = "password";
