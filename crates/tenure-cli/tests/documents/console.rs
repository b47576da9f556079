//! Blocks of commands are run as one script of `bash`, in a folder that has the scripts that the
//! pages speak of.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process_group};
use tenure_servers::{Bundle, Cluster, Options, Topology, require, start, tool};

use crate::markdown::{Block, Page, commands, root, shown_output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tenure");
/// The lab fetches and starts servers, and the flash sale takes 20 s by itself.
const LIMIT: Duration = Duration::from_secs(180);
/// What users run under a lock in the pages.
const SCRIPTS: &[&str] =
    &["report.sh", "deploy.sh", "migrate.sh", "backup.sh", "build", "push", "stocktaking.sh"];
const ATTRIBUTES: &[&str] = &["server", "held", "exit", "output", "no-run"];

/// One trial for each block of commands, and one that shows that none is passed over.
pub(crate) fn trials(pages: &[Page]) -> Vec<Trial> {
    let mut blocks: Vec<Block> = Vec::new();
    for block in pages.iter().flat_map(|page| &page.blocks) {
        let shell = ["console", "sh", "bash", "shell"].contains(&block.language.as_str());
        if shell && !blocks.iter().any(|known| known.same_as(block)) {
            blocks.push(block.clone());
        }
    }
    blocks.into_iter().map(trial).collect()
}

fn trial(block: Block) -> Trial {
    let name = format!("console::{}", block.place);
    Trial::ignorable_test(name, move || {
        if let Some(unknown) = block.attribute_names().find(|name| !ATTRIBUTES.contains(name)) {
            return Err(format!("unknown attribute `{unknown}`").into());
        }
        if let Some(reason) = block.attribute("no-run") {
            return Ok(Completion::ignored_with(reason));
        }
        if lines_to_run(&block).is_empty() {
            return Err("no line begins with `$ `".into());
        }
        let Some(name) = block.attribute("server") else {
            return run(&block, None).map(|()| Completion::Completed);
        };
        match server(name)? {
            Ok(cluster) => run(&block, Some(&cluster)).map(|()| Completion::Completed),
            Err(reason) => Ok(Completion::ignored_with(reason)),
        }
    })
}

/// The server of this name, or why it cannot be had.
pub(crate) fn server(name: &str) -> Result<Result<Cluster, String>, Failed> {
    let mut known = Topology::ALL.into_iter();
    let topology = known.find(|topology| topology.name() == name);
    let topology = topology.ok_or_else(|| format!("no server is called `{name}`"))?;
    match start(topology, &Options::default()) {
        Ok(cluster) => Ok(Ok(cluster)),
        Err(error) if error.is_missing() && !require(name) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

fn run(block: &Block, cluster: Option<&Cluster>) -> Result<(), Failed> {
    let folder = Folder::new();
    if let Some(cluster) = cluster {
        folder.add_tools(cluster)?;
    }
    let url = cluster.map(Cluster::url);
    let mut script = String::from("set -eo pipefail\n");
    let mut replaced = false;
    for command in lines_to_run(block) {
        // Minutes in a page would be minutes here.
        let command = command.replace("--at-least 1m", "--at-least 2s");
        let command = command.replace("--seconds 60", "--seconds 2");
        let real = url.as_deref().map_or(command.clone(), |url| with_url(&command, url));
        replaced |= real != command;
        script.push_str(&real);
        script.push('\n');
    }
    let url = url.filter(|_| !replaced);
    let _holder = block.attribute("held").map(|key| folder.hold(key, url.as_deref()));
    let mut bash = folder.command("bash", url.as_deref());
    let ended = to_its_end(bash.arg("-c").arg(&script))?;
    let expected: i32 = block.attribute("exit").map_or(0, |code| code.parse().unwrap());
    if ended.code != Some(expected) {
        let code = ended.code;
        return Err(format!("{script}\nexit code {code:?}, not {expected}\n{}", ended.text).into());
    }
    if block.attribute("output") == Some("example") || block.language != "console" {
        return Ok(());
    }
    let mut lines = ended.text.lines();
    for shown in shown_output(&block.text) {
        if !lines.any(|line| is_like(line, shown)) {
            return Err(format!("the page shows `{shown}`; the output is\n{}", ended.text).into());
        }
    }
    Ok(())
}

/// What to run: the commands that a terminal shows, or a script as it is.
fn lines_to_run(block: &Block) -> Vec<String> {
    if block.language == "console" {
        return commands(&block.text);
    }
    block.text.lines().map(str::to_owned).collect()
}

/// The command with every URL of this server's kind replaced by the real one; options stay.
pub(crate) fn with_url(command: &str, real: &str) -> String {
    let scheme = real.split_inclusive("://").next().unwrap_or_default();
    let mut parts = command.split(scheme);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([' ', '\'', '"', '?', '\n']).unwrap_or(part.len());
        let (url, options) = real.split_once('?').unwrap_or((real, ""));
        text.push_str(url);
        match (options, part[end..].strip_prefix('?')) {
            ("", _) => text.push_str(&part[end..]),
            (options, Some(more)) => text.push_str(&format!("?{options}&{more}")),
            (options, None) => text.push_str(&format!("?{options}{}", &part[end..])),
        }
    }
    text
}

/// Whether a line is what the page shows: any number stands for a number, `…` for anything.
fn is_like(line: &str, shown: &str) -> bool {
    let plain = |text: &str| {
        let digits = text.replace(|c: char| c.is_ascii_digit(), "0");
        let words: Vec<&str> = digits.split_whitespace().collect();
        let mut text = words.join(" ");
        while text.contains("00") {
            text = text.replace("00", "0");
        }
        text
    };
    let (line, shown) = (plain(line), plain(shown));
    match shown.split_once('…') {
        Some((begin, end)) => line.starts_with(begin) && line.ends_with(end),
        None => line == shown,
    }
}

/// Where a block runs: a home of its own, scripts, and `tenure` and `cargo` on the path.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir(path.join("bin")).unwrap();
        std::os::unix::fs::symlink(PROGRAM, path.join("bin/tenure")).unwrap();
        write_script(&path.join("bin/cargo"), &cargo());
        for name in SCRIPTS {
            write_script(&path.join(name), "#!/bin/sh\nexit 0\n");
        }
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A program in this folder, as a new user would start it.
    pub(crate) fn command(&self, program: &str, url: Option<&str>) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.current_dir(self.path()).env("HOME", self.path());
        command.env("PATH", format!("{}/bin:{path}", self.path().display()));
        for name in ["TENURE_REACH", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "TENURE_URL"] {
            command.env_remove(name);
        }
        if let Some(url) = url {
            command.env("TENURE_URL", url);
        }
        command
    }

    /// The server's own program, as one that is installed and configured.
    fn add_tools(&self, cluster: &Cluster) -> Result<(), Failed> {
        let (bundle, name, variable) = match cluster.topology() {
            Topology::Etcd => (Bundle::Etcd, "etcdctl", "ETCDCTL_ENDPOINTS"),
            Topology::Consul => (Bundle::Consul, "consul", "CONSUL_HTTP_ADDR"),
            _ => return Ok(()),
        };
        let command = tool(bundle, name)?;
        let mut script = format!("#!/bin/sh\nexport {variable}={}\n", cluster.node().address());
        for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            script.push_str(&format!("export {}='{}'\n", name.display(), value.display()));
        }
        script.push_str(&format!("exec '{}'", command.get_program().display()));
        for argument in command.get_args() {
            script.push_str(&format!(" '{}'", argument.display()));
        }
        write_script(&self.path().join("bin").join(name), &format!("{script} \"$@\"\n"));
        Ok(())
    }

    fn hold(&self, key: &str, url: Option<&str>) -> crate::support::Running {
        let mut command = self.command(PROGRAM, url);
        command.args(["run", key, "--", "sh", "-c", "echo held; exec sleep 120"]);
        let holder = crate::support::Running::start(command.stdin(Stdio::null()));
        assert_eq!(holder.line(), "held");
        holder
    }
}

/// `cargo` as the pages use it, with what is built already; it would build everything once more.
fn cargo() -> String {
    let root = root();
    let root = root.display();
    let sale = Path::new(PROGRAM).with_file_name("flash_sale");
    let sale = if sale.exists() {
        sale.display().to_string()
    } else {
        format!("{} run --quiet --manifest-path {root}/Cargo.toml -p flash_sale --", cargo_itself())
    };
    format!(
        "#!/bin/sh
case \"$1 $2 $3\" in
'run -- '*) shift 2; exec {PROGRAM} \"$@\" ;;
'run -p flash_sale') shift 3; [ \"$1\" = -- ] && shift; exec {sale} \"$@\" ;;
'xtask '*) exec grep \"^  $2 \" {root}/xtask/src/main.rs ;; # It may be what runs this.
esac
echo \"cargo $*: not known here\" >&2; exit 70
"
    )
}

pub(crate) fn cargo_itself() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

pub(crate) fn write_script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

/// Runs it to its end, with all its children, in a group of its own.
pub(crate) fn to_its_end(command: &mut Command) -> Result<Ended, Failed> {
    let output = tempfile::NamedTempFile::new().unwrap();
    command.stdin(Stdio::null());
    // Both go to the same file; they append, so that neither overwrites the other.
    let file = fs::OpenOptions::new().append(true).open(output.path()).unwrap();
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.process_group(0).spawn().unwrap();
    let group = Pid::from_child(&child);
    let end = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            let _ended = kill_process_group(group, Signal::KILL);
            let _reaped = child.wait();
            let text = fs::read_to_string(output.path()).unwrap_or_default();
            return Err(format!("not over after {LIMIT:?}\n{text}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let _ended = kill_process_group(group, Signal::KILL);
    let text = String::from_utf8_lossy(&fs::read(output.path()).unwrap()).into_owned();
    Ok(Ended { code: status.code(), text })
}
