//! MySQL: the server by Oracle. Its administrator has a random password, which is in the URL.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::mysqld::{Mysqld, share_folder};
use super::{StartContext, ports};
use crate::error::{Error, Result};
use crate::node::{Node, START_LIMIT};
use crate::provision::{self, Bundle};
use crate::secret::Secret;
use crate::wire::mysql::Mysql;

/// The file with the administrator's password, in the folder of the node.
const PASSWORD_FILE: &str = "password";

pub(super) fn start(context: &StartContext<'_>) -> Result<Vec<Node>> {
    let program = provision::program(Bundle::Mysql)?;
    let share = share_folder(&program, &["share/mysql", "share"], |folder| {
        folder.join("charsets").is_dir()
    });
    let share = share.ok_or_else(|| Error::missing("mysql", "no `charsets` for the program"))?;
    let [port] = ports::<1>()?;
    let folder = context.folder("n1")?;
    let own = own_options(&folder);
    let server = Mysqld::new(context, program, folder.clone(), &share, own);
    // More than a second of work; several at once on a busy machine took a minute.
    server.initialize("--initialize-insecure", None, 2 * START_LIMIT)?;
    let script = write_password(context, &folder)?;
    server.start(port, &[&format!("--init-file={}", script.display())])
}

/// Whether the server works. It accepts connections on its socket before those over TCP, so both
/// are tried.
pub(crate) fn ready(node: &Node) -> io::Result<()> {
    Mysql::admin(node)?.query("select 1")?;
    std::net::TcpStream::connect((node.host(), node.port())).map(drop)
}

/// The URL, with the administrator's password.
pub(crate) fn url(node: &Node) -> String {
    let password = password(node).unwrap_or_default();
    format!("mysql://root:{password}@{}/test", node.address())
}

/// The administrator's password, from the node's folder, which only this user can read.
pub(crate) fn password(node: &Node) -> io::Result<String> {
    fs::read_to_string(node.dir().join(PASSWORD_FILE))
}

/// Makes a password. The server runs the returned script at every start; it changes nothing the
/// second time. The server tells users apart by their address, so there are two administrators: one
/// for the socket, one for loopback.
fn write_password(context: &StartContext<'_>, folder: &Path) -> Result<PathBuf> {
    let password = Secret::new().map_err(|error| context.failed(error))?;
    let password = password.as_str();
    context.write(&folder.join(PASSWORD_FILE), password)?;
    let script = folder.join("start.sql");
    // The server wants one statement per line.
    let text = format!(
        "ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';\n\
         CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n\
         CREATE DATABASE IF NOT EXISTS test;\n"
    );
    context.write(&script, &text)?;
    Ok(script)
}

fn own_options(folder: &Path) -> Vec<String> {
    vec![
        format!("--plugin-dir={}", folder.display()),
        "--secure-file-priv=NULL".to_owned(),
        "--mysqlx=OFF".to_owned(),
        // Making keys at every start takes long on a slow machine. The RSA key of logins without
        // encryption is made all the same.
        "--auto-generate-certs=OFF".to_owned(),
        "--innodb-redo-log-capacity=32M".to_owned(),
    ]
}
