//! MariaDB.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Site, argv, ports};
use crate::error::{Error, Result};
use crate::get::{self, Bundle, Program};
use crate::node::{Node, START_LONGEST};
use crate::process::Launch;
use crate::wire::mysql::Mysql;

pub(super) fn start(site: &Site<'_>) -> Result<Vec<Node>> {
    let program = get::program(Bundle::Mariadb)?;
    let share = share(&program)?;
    let [port] = ports::<1>()?;
    let folder = site.folder("n1")?;
    site.folder("n1/data/mysql")?;
    site.folder("n1/files")?;
    let plugins = site.folder("n1/plugins")?;
    let closed = fs::set_permissions(&plugins, fs::Permissions::from_mode(0o500));
    closed.map_err(|error| site.failed(error))?;
    let base = base(&folder, &share);

    let script = site.dir.join("bootstrap.sql");
    let text = bootstrap(&share, site.secret.as_str());
    let text = text.map_err(|error| Error::missing("mariadb", error))?;
    site.write(&script, &text)?;
    let mut options: Vec<&str> = base.iter().map(String::as_str).collect();
    options.extend(["--bootstrap", "--skip-log-bin"]);
    options.extend(["--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"]);
    let log = site.dir.join("bootstrap.log");
    let mut launch = Launch::new(argv(program.argv(None), &options), &folder, log);
    launch.stdin = Some(script.clone());
    launch.run(START_LONGEST).map_err(|reason| Error::failed("make a MariaDB", reason))?;
    fs::remove_file(&script).map_err(|error| site.failed(error))?;

    let number = format!("--port={}", port.number());
    let mut options: Vec<&str> = base.iter().map(String::as_str).collect();
    options.extend(["--bind-address=127.0.0.1", &number, "--pid-file=mariadb.pid"]);
    // Relative to the data: the path of a socket has at most 107 bytes.
    options.extend(["--socket=m.sock", "--skip-log-bin", "--skip-name-resolve"]);
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

pub(super) fn ready(node: &Node) -> io::Result<()> {
    Mysql::connect(node.port())?.query("select 1").map(drop)
}

fn base(folder: &Path, share: &Path) -> Vec<String> {
    let (folder, share) = (folder.display(), share.display());
    let mut base = vec![
        // Must be the first.
        "--no-defaults".to_owned(),
        format!("--datadir={folder}/data"),
        format!("--lc-messages-dir={share}"),
        format!("--character-sets-dir={share}/charsets"),
        // What a statement writes goes to a folder that no statement can load a library from.
        format!("--plugin-dir={folder}/plugins"),
        format!("--secure-file-priv={folder}/files"),
        // A server that starts removes what it finds of temporary tables, also those of others.
        format!("--tmpdir={folder}"),
        "--innodb-buffer-pool-size=16M".to_owned(),
        "--innodb-log-file-size=4M".to_owned(),
        // io_uring is often forbidden in containers.
        "--innodb-use-native-aio=0".to_owned(),
    ];
    if rustix::process::geteuid().is_root() {
        base.push("--user=root".to_owned());
    }
    base
}

/// The folder with the messages and the SQL that makes the system tables.
fn share(program: &Program) -> Result<PathBuf> {
    let prefix = program.prefix();
    let places = ["share/mysql", "share/mariadb", "share"].map(|place| prefix.join(place));
    let found = places.into_iter().find(|place| sql(place, "system_tables").is_file());
    found.ok_or_else(|| Error::missing("mariadb", "no mariadb_system_tables.sql for the program"))
}

/// A file that makes a part of the database `mysql`. Before 11 its name began with `mysql`.
fn sql(share: &Path, part: &str) -> PathBuf {
    let [new, old] = ["mariadb", "mysql"].map(|maker| share.join(format!("{maker}_{part}.sql")));
    if new.is_file() { new } else { old }
}

/// The system tables without help texts and the sys schema, which take most of the time; and
/// the password of root, the only one who gets in. One statement per line where we write them.
fn bootstrap(share: &Path, password: &str) -> io::Result<String> {
    let mut text = "use mysql;\nSET @auth_root_socket=NULL;\n".to_owned();
    for part in ["system_tables", "performance_tables", "system_tables_data"] {
        text.push_str(&fs::read_to_string(sql(share, part))?);
    }
    text.push_str(&fs::read_to_string(share.join("maria_add_gis_sp_bootstrap.sql"))?);
    text.push_str("CREATE DATABASE IF NOT EXISTS test;\n");
    text.push_str("DELETE FROM global_priv WHERE User = '';\n");
    text.push_str(&format!(
        "UPDATE global_priv SET Priv = json_set(Priv, '$.plugin', 'mysql_native_password', \
         '$.authentication_string', PASSWORD('{password}')) WHERE User = 'root';\n"
    ));
    Ok(text)
}
