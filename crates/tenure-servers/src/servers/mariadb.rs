//! MariaDB.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::mysqld::{Mysqld, share_folder};
use super::{StartContext, ports};
use crate::error::{Error, Result};
use crate::node::{Node, START_LIMIT};
use crate::provision::{self, Bundle};
use crate::wire::mysql::Mysql;

pub(super) fn start(context: &StartContext<'_>) -> Result<Vec<Node>> {
    let program = provision::program(Bundle::Mariadb)?;
    let share = share_folder(&program, &["share/mysql", "share/mariadb", "share"], |folder| {
        sql_file(folder, "system_tables").is_file()
    });
    let missing = || Error::missing("mariadb", "no mariadb_system_tables.sql for the program");
    let share = share.ok_or_else(missing)?;
    let [port] = ports::<1>()?;
    let folder = context.folder("n1")?;
    context.folder("n1/data/mysql")?;
    context.folder("n1/files")?;
    let plugins = context.folder("n1/plugins")?;
    let closed = fs::set_permissions(&plugins, fs::Permissions::from_mode(0o500));
    closed.map_err(|error| context.failed(error))?;

    let script = context.dir.join("bootstrap.sql");
    let text = bootstrap(&share, context.secret.as_str());
    let text = text.map_err(|error| Error::missing("mariadb", error))?;
    context.write(&script, &text)?;
    let own = own_options(&folder);
    let server = Mysqld::new(context, program, folder, &share, own);
    server.initialize("--bootstrap", Some(script.clone()), START_LIMIT)?;
    fs::remove_file(&script).map_err(|error| context.failed(error))?;
    server.start(port, &[])
}

pub(super) fn ready(node: &Node) -> io::Result<()> {
    Mysql::connect(node.port())?.query("select 1").map(drop)
}

fn own_options(folder: &Path) -> Vec<String> {
    let folder = folder.display();
    vec![
        // A statement can write files only to a folder from which no statement loads a library.
        format!("--plugin-dir={folder}/plugins"),
        format!("--secure-file-priv={folder}/files"),
        "--innodb-log-file-size=4M".to_owned(),
    ]
}

/// A file that makes a part of the database `mysql`. Before version 11 its name began with `mysql`.
fn sql_file(share: &Path, part: &str) -> PathBuf {
    let [new, old] = ["mariadb", "mysql"].map(|maker| share.join(format!("{maker}_{part}.sql")));
    if new.is_file() { new } else { old }
}

/// The statements that make the system tables, without help texts and the sys schema, which take
/// most of the time; and the password of root, the only user. The server wants one statement per
/// line.
fn bootstrap(share: &Path, password: &str) -> io::Result<String> {
    let mut text = "use mysql;\nSET @auth_root_socket=NULL;\n".to_owned();
    for part in ["system_tables", "performance_tables", "system_tables_data"] {
        text.push_str(&fs::read_to_string(sql_file(share, part))?);
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
