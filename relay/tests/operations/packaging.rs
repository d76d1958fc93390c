//! Image, chart, manifests, unit and package fit the relay that they carry.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use engine::EngineOptions;

/// In numbers, so that Kubernetes sees that it is not root.
const USER: &str = "65532";

fn folder() -> PathBuf {
    PathBuf::from("packaging")
}

fn text(file: &str) -> String {
    std::fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn chart(file: &str) -> String {
    text(&format!("helm/outbox-relay/{file}"))
}

/// The value behind `name` at the beginning of a line, whatever its indentation.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
    found.unwrap_or_else(|| panic!("there is no {name:?}")).trim().trim_matches('"')
}

/// The block of text under a key of a YAML file, without its indentation.
fn block(text: &str, key: &str) -> String {
    let mut lines = text.lines().skip_while(|line| line.trim() != key).skip(1).peekable();
    let indentation = lines.peek().map_or(0, |line| line.len() - line.trim_start().len());
    let is_inside =
        |line: &&str| line.trim().is_empty() || line.len() - line.trim_start().len() >= indentation;
    let block: Vec<&str> =
        lines.take_while(is_inside).map(|line| line.get(indentation..).unwrap_or("")).collect();
    block.join("\n")
}

/// The configuration passes the relay's own check, which connects to nothing. That a file is not on
/// this machine does not count.
fn is_taken(configuration: &str) -> bool {
    let folder = std::env::temp_dir().join(format!("relay-packaging-{}", uuid()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("relay.toml");
    std::fs::write(&file, configuration).unwrap();
    let relay = Command::new(env!("CARGO_BIN_EXE_relay"))
        .args(["config", "check", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let told = String::from_utf8_lossy(&relay.stderr);
    eprintln!("{told}");
    let mut problems = told.lines().filter(|line| line.trim_start().starts_with('×')).peekable();
    relay.status.success()
        || problems.peek().is_some() && problems.all(|problem| problem.contains("No such file"))
}

fn uuid() -> String {
    message::MessageId::new().to_string()
}

#[test]
fn every_configuration_that_is_shipped_is_taken() {
    assert!(is_taken(&text("relay.toml")));
    assert!(is_taken(&block(&chart("values.yaml"), "config: |")));
    assert!(is_taken(&block(&text("kubernetes/relay.yaml"), "relay.toml: |")));
    assert!(!is_taken("[[pipeline]]\n"), "the check finds something");
}

#[test]
fn every_configuration_that_a_document_shows_is_taken() {
    let mut count = 0;
    for path in super::documented_commands::documents() {
        let document = std::fs::read_to_string(&path).unwrap();
        for block in document.split("```toml\n").skip(1) {
            let lines = block.lines().take_while(|line| line.trim() != "```");
            let configuration = lines.collect::<Vec<_>>().join("\n");
            if configuration.contains("[[pipeline]]") {
                count += 1;
                assert!(is_taken(&configuration), "{}:\n{configuration}", path.display());
            }
        }
    }
    assert!(count >= 8, "{count} configurations were found");
}

#[test]
fn probes_ask_what_the_relay_serves() {
    let served = include_str!("../../src/http/serve.rs");
    let (chart, manifest) = (chart("templates/deployment.yaml"), text("kubernetes/relay.yaml"));
    for text in [&chart, &manifest] {
        let paths: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("path: ")).collect();
        assert_eq!(paths, ["/livez", "/livez", "/readyz"]);
        assert!(paths.iter().all(|path| served.contains(&format!("\"{path}\" =>"))));
    }
    let port = value(&self::chart("values.yaml"), "port: ").to_owned();
    assert!(
        block(&self::chart("values.yaml"), "config: |").contains(&format!("listen = \"0.0.0.0:{port}\""))
    );
    assert_eq!(value(&text("docker/Dockerfile"), "EXPOSE "), port);
    assert_eq!(value(&manifest, "containerPort: "), port);
    assert!(text("relay.toml").contains(&format!("listen = \"127.0.0.1:{port}\"")));
}

#[test]
fn everything_is_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(value(&chart("Chart.yaml"), "version: "), version);
    assert_eq!(value(&chart("Chart.yaml"), "appVersion: "), version);
    assert_eq!(value(&text("docker/Dockerfile"), "ARG VERSION="), version);
    assert_eq!(value(&text("kubernetes/relay.yaml"), "image: "), format!("outbox-relay:{version}"));
    assert_eq!(
        value(&text("debian/changelog"), "outbox-relay ("),
        format!("{version}-1) unstable; urgency=medium")
    );
}

/// The package's own manifest, which lists the contents of the Debian package.
fn debian() -> toml::Table {
    let manifest = std::fs::read_to_string(folder().join("../Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    manifest["package"]["metadata"]["deb"].as_table().unwrap().clone()
}

/// Files that a release makes are not there before it. They are not in `target/package`, which
/// packing empties.
#[test]
fn whatever_the_debian_package_holds_exists() {
    let debian = debian();
    let sources = |asset: &toml::Value| asset[0].as_str().unwrap().to_owned();
    let mut files: Vec<String> = debian["assets"].as_array().unwrap().iter().map(sources).collect();
    assert!(!files.iter().any(|file| file.starts_with("../target/package/")), "{files:?}");
    files.retain(|file| !file.trim_start_matches("../").starts_with("target/"));
    assert!(files.len() > 5, "{files:?}");
    files.extend(
        [&debian["license-file"][0], &debian["changelog"]].map(|file| file.as_str().unwrap().to_owned()),
    );
    for file in files {
        assert!(folder().join("..").join(&file).is_file(), "{file}");
    }
}

/// An operator who has nothing but the package has rules and a dashboard.
#[test]
fn the_debian_package_brings_what_watches_the_relay() {
    let debian = debian();
    let assets = debian["assets"].as_array().unwrap();
    for file in ["alerts.yml", "dashboard.json"] {
        let target = format!("usr/share/outbox-relay/{file}");
        assert!(assets.iter().any(|asset| asset[1].as_str() == Some(&target)), "{target}");
    }
    let installed = include_str!("../../../docs/operations/install.md");
    assert!(installed.contains("- /usr/share/outbox-relay/alerts.yml"));
    assert!(text("relay.toml").contains("[http]"));
}

/// Exactly the version of Rust that `Cargo.toml` requires: rustup would fetch the components that
/// `rust-toolchain.toml` names.
#[test]
fn the_image_is_built_with_the_oldest_rust() {
    let image = format!("ARG BUILD_IMAGE=rust:{}-", env!("CARGO_PKG_RUST_VERSION"));
    assert!(text("docker/Dockerfile").contains(&image), "{image}");
    let ignored = include_str!("../../../.dockerignore");
    assert!(ignored.lines().any(|line| line == "rust-toolchain.toml"));
}

/// A tag can be moved to another image, a digest cannot.
#[test]
fn a_release_names_its_base_images_by_digest() {
    let (release, dockerfile) =
        (include_str!("../../../.github/workflows/release.yml"), text("docker/Dockerfile"));
    for name in ["BUILD_IMAGE", "BASE_IMAGE"] {
        assert!(dockerfile.contains(&format!("FROM ${{{name}}}")), "{name}");
        assert!(release.contains(&format!("--build-arg {name}=\"${name}\"")), "{name}");
    }
    assert!(release.contains("for name in BUILD_IMAGE BASE_IMAGE; do") && release.contains("$image@$digest"));
    let unpinned =
        dockerfile.lines().filter(|line| line.starts_with("FROM ") && !line.starts_with("FROM ${"));
    assert_eq!(unpinned.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// A tag can be moved to another commit, which would then publish in our name.
#[test]
fn workflows_name_actions_by_commit() {
    for entry in std::fs::read_dir(folder().join("../../.github/workflows")).unwrap() {
        let workflow = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for action in
            workflow.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "))
        {
            let commit = action.split_once('@').unwrap().1.split(' ').next().unwrap();
            assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{action}");
        }
    }
}

#[test]
fn the_icon_of_the_chart_is_in_the_repository() {
    let chart = chart("Chart.yaml");
    let (_, path) = value(&chart, "icon: ").split_once("/raw/main/").unwrap();
    assert!(folder().join("../..").join(path).is_file(), "{path}");
}

#[test]
fn nothing_runs_as_root() {
    assert_eq!(value(&text("docker/Dockerfile"), "USER "), format!("{USER}:{USER}"));
    for text in [chart("templates/_helpers.tpl"), text("kubernetes/relay.yaml")] {
        assert_eq!(value(&text, "runAsUser: "), USER);
        for rule in
            ["runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [ALL]", "type: RuntimeDefault"]
        {
            assert!(text.contains(rule) || text.contains(&rule.replace("[ALL]", "\n")), "{rule}");
        }
    }
    assert_eq!(value(&text("relay.service"), "User="), "relay");
}

#[test]
fn a_relay_is_given_the_time_to_hand_over() {
    let grace = EngineOptions::default().shutdown_grace;
    let given = |text: &str, name: &str| Duration::from_secs(value(text, name).parse().unwrap());
    assert!(given(&chart("values.yaml"), "terminationGracePeriodSeconds: ") > grace);
    assert!(given(&text("kubernetes/relay.yaml"), "terminationGracePeriodSeconds: ") > grace);
    assert!(given(&text("relay.service"), "TimeoutStopSec=") > grace);
}

/// The manifests are those of the chart: `render.sh` writes a checksum of it into them.
#[test]
fn the_manifests_are_rendered_from_this_chart() {
    let mut files =
        vec![folder().join("helm/outbox-relay/Chart.yaml"), folder().join("helm/outbox-relay/values.yaml")];
    let templates = std::fs::read_dir(folder().join("helm/outbox-relay/templates")).unwrap();
    let mut templates: Vec<PathBuf> = templates.map(|entry| entry.unwrap().path()).collect();
    templates.retain(|path| path.is_file());
    // As the shell sorts them in the C locale.
    templates.sort();
    files.extend(templates);
    let mut joined = Vec::new();
    files.iter().for_each(|file| joined.extend(std::fs::read(file).unwrap()));
    let manifest = text("kubernetes/relay.yaml");
    assert_eq!(value(&manifest, "# chart: "), sha256(&joined), "run relay/packaging/render.sh");
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
