//! Crontabs, units and manifests of the pages: well-formed for the program that reads them, and
//! their commands do what the page says, on a real server.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::{Completion, Failed, Trial};
use tenure_servers::Cluster;
use yaml_rust2::{Yaml, YamlLoader};

use crate::console::{Ended, Folder, server, to_its_end, write_script};
use crate::markdown::{Block, Page};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tenure");
/// What the pages run under a lock; a test has its own there.
const JOBS: &[&str] = &["/usr/local/bin/report.sh", "/usr/local/bin/importer"];

pub(crate) fn trials(pages: &[Page]) -> Vec<Trial> {
    let blocks = pages.iter().flat_map(|page| &page.blocks);
    let files: Vec<&Block> = blocks.filter(|block| block.attribute("file").is_some()).collect();
    assert!(files.len() >= 6, "the pages have lost their units");
    let mut trials: Vec<Trial> = files.iter().map(|file| form((*file).clone())).collect();
    trials.extend(files.iter().filter_map(|file| work((*file).clone())));
    trials
}

/// Whether it is well-formed.
fn form(block: Block) -> Trial {
    Trial::ignorable_test(format!("form::{}", block.place), move || {
        match block.language.as_str() {
            "crontab" => crontab(&block.text).map(drop)?,
            "yaml" => manifest(&block.text).map(drop)?,
            "ini" => return unit(&block),
            other => return Err(format!("no check for `{other}`").into()),
        }
        Ok(Completion::Completed)
    })
}

/// Whether its command does what it should. A timer has none.
fn work(block: Block) -> Option<Trial> {
    let command = match block.language.as_str() {
        "crontab" => crontab(&block.text).ok()?,
        "yaml" => manifest(&block.text).ok()?,
        _ => exec_start(&block.text)?,
    };
    Some(Trial::ignorable_test(format!("work::{}", block.place), move || {
        let cluster = match server("redis")? {
            Ok(cluster) => cluster,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        };
        if command.contains("--at-least") {
            once_on_three_machines(&command, &cluster)?;
        } else {
            one_after_the_other(&command, &cluster)?;
        }
        Ok(Completion::Completed)
    }))
}

/// The commands of the lines, whose fields have to be what cron(8) reads.
fn crontab(text: &str) -> Result<String, Failed> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let mut commands = Vec::new();
    for line in lines {
        let mut fields = line.splitn(7, ' ');
        for limit in [59, 23, 31, 12, 7] {
            let field = fields.next().unwrap_or_default();
            let number = field.parse::<u32>().is_ok_and(|number| number <= limit);
            if field != "*" && !number {
                return Err(format!("`{field}` of `{line}`").into());
            }
        }
        let user = fields.next().unwrap_or_default();
        let name = |c: char| c.is_ascii_lowercase() || c == '-';
        if user.is_empty() || !user.chars().all(name) {
            return Err(format!("`{user}` is no user").into());
        }
        let command = fields.next().ok_or("a line without a command")?;
        // To cron, `%` is the end of the line.
        if command.contains('%') {
            return Err("a command with `%`".into());
        }
        commands.push(command.to_owned());
    }
    commands.pop().ok_or_else(|| "no line".into())
}

fn unit(block: &Block) -> Result<Completion, Failed> {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return Ok(Completion::ignored_with("there is no systemd-analyze"));
    }
    let folder = Folder::new();
    let name = Path::new(block.attribute("file").unwrap()).file_name().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, with_real_paths(&block.text, &folder, "true")).unwrap();
    if name.to_string_lossy().ends_with(".timer") {
        let service = path.with_extension("service");
        fs::write(service, "[Service]\nType=oneshot\nExecStart=/bin/true\n").unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    let ended = to_its_end(verify.args(["verify", "--man=no"]).arg(&path))?;
    // It says nothing about a unit that is right; of other units of the machine it may.
    let about = ended.text.lines().filter(|line| line.contains(&*name.to_string_lossy()));
    let about: Vec<&str> = about.collect();
    if ended.code != Some(0) || !about.is_empty() {
        return Err(format!("{:?}\n{}", ended.code, ended.text).into());
    }
    Ok(Completion::Completed)
}

fn exec_start(text: &str) -> Option<String> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let environment = value("Environment=").unwrap_or_default();
    Some(format!("{environment} {}", value("ExecStart=")?))
}

/// The command of the first container.
fn manifest(text: &str) -> Result<String, Failed> {
    let documents = YamlLoader::load_from_str(text)?;
    let [document] = &documents[..] else { return Err("not one document".into()) };
    for field in ["apiVersion", "kind"] {
        document[field].as_str().ok_or_else(|| format!("no `{field}`"))?;
    }
    document["metadata"]["name"].as_str().ok_or("no name")?;
    let spec = &document["spec"];
    let pod = match document["kind"].as_str() {
        Some("CronJob") => {
            crontab(&format!("{} root x", spec["schedule"].as_str().unwrap_or_default()))?;
            &spec["jobTemplate"]["spec"]["template"]
        }
        _ if spec["selector"]["matchLabels"] != spec["template"]["metadata"]["labels"] => {
            return Err("the selector does not select the pods".into());
        }
        _ => &spec["template"],
    };
    let container = &pod["spec"]["containers"][0];
    container["image"].as_str().ok_or("no image")?;
    let set = container["env"].as_vec().into_iter().flatten();
    let mut set = set.filter_map(|variable| {
        Some(format!("{}={}", variable["name"].as_str()?, variable["value"].as_str()?))
    });
    let words = container["command"].as_vec().ok_or("no command")?;
    let words: Option<Vec<&str>> = words.iter().map(Yaml::as_str).collect();
    let words = words.ok_or("a word of the command is no text")?;
    Ok(format!("{} {}", set.next().unwrap_or_default(), words.join(" ")))
}

/// The text with the paths of this test, and jobs that do that.
fn with_real_paths(text: &str, folder: &Folder, job: &str) -> String {
    let mut text = text.replace("/usr/local/bin/tenure", PROGRAM);
    for path in JOBS {
        let real = folder.path().join(Path::new(path).file_name().unwrap());
        write_script(&real, &format!("#!/bin/sh\n{job}\n"));
        text = text.replace(path, &real.display().to_string());
    }
    text
}

/// As cron starts it: nearly without an environment.
fn start_bare(command: &str, folder: &Folder, cluster: &Cluster) -> Result<Ended, Failed> {
    let mut shell = Command::new("sh");
    shell.env_clear().env("HOME", folder.path()).env("TENURE_URL", cluster.url());
    shell.env("PATH", format!("{}/bin:/usr/bin:/bin", folder.path().display()));
    to_its_end(shell.current_dir(folder.path()).arg("-c").arg(command))
}

/// Three machines start a short job, a moment apart: it runs once, and all are content.
fn once_on_three_machines(command: &str, cluster: &Cluster) -> Result<(), Failed> {
    let (folder, done) = (Folder::new(), tempfile::NamedTempFile::new().unwrap());
    let job = format!("echo done >> {}", done.path().display());
    // The page says a minute; six seconds are longer than the three starts below take.
    let command = with_real_paths(command, &folder, &job).replace("--at-least 1m", "--at-least 6s");
    let ended: Vec<Result<Ended, Failed>> = std::thread::scope(|scope| {
        let machine = |number: u64| {
            std::thread::sleep(Duration::from_millis(400 * number));
            start_bare(&command, &folder, cluster)
        };
        let machines: Vec<_> = (0..3).map(|n| scope.spawn(move || machine(n))).collect();
        machines.into_iter().map(|machine| machine.join().unwrap()).collect()
    });
    for ended in ended {
        let ended = ended?;
        if ended.code != Some(0) || !ended.text.is_empty() {
            return Err(format!("{:?} {}", ended.code, ended.text).into());
        }
    }
    let runs = fs::read_to_string(done.path()).unwrap();
    if runs == "done\n" { Ok(()) } else { Err(format!("it ran so often:\n{runs}").into()) }
}

/// Two copies of a service: while one runs, the other waits, and takes over when it ends.
fn one_after_the_other(command: &str, cluster: &Cluster) -> Result<(), Failed> {
    let (folder, log) = (Folder::new(), tempfile::NamedTempFile::new().unwrap());
    let log_path = log.path().display();
    // If the two overlapped, there would be two begins in a row.
    let job = format!("echo begin >> {log_path}; sleep 1; echo end >> {log_path}");
    let command = with_real_paths(command, &folder, &job);
    let ended: Vec<Result<Ended, Failed>> = std::thread::scope(|scope| {
        let copy = || start_bare(&command, &folder, cluster);
        let copies = [scope.spawn(copy), scope.spawn(copy)];
        copies.into_iter().map(|copy| copy.join().unwrap()).collect()
    });
    for ended in ended {
        let ended = ended?;
        if ended.code != Some(0) {
            return Err(format!("{:?} {}", ended.code, ended.text).into());
        }
    }
    let log = fs::read_to_string(log.path()).unwrap();
    if log == "begin\nend\nbegin\nend\n" { Ok(()) } else { Err(log.into()) }
}
