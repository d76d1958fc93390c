//! No circle of modules: a reader of one file of a circle has to know all of them, and none of them
//! can be moved or tested alone.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Modules;
use super::{assert_none, texts};

/// The circles that are left, each by the crate's folder and its files. An entry may only become
/// shorter, and goes with its circle.
const LEFT: [(&str, &str); 31] = [
    ("brokers", "kafka/beginning.rs kafka/callbacks.rs kafka/fixed.rs kafka/offsets.rs"),
    ("brokers", "kafka/evidence.rs kafka/wire.rs"),
    ("brokers", "kafka/outcomes.rs kafka/publisher.rs kafka/session.rs kafka/topics.rs"),
    (
        "brokers",
        "kafka/transactions/connector.rs kafka/transactions/inspect.rs kafka/transactions/marks.rs \
         kafka/transactions/opening.rs kafka/transactions/probe.rs",
    ),
    ("brokers", "kafka/transactions/publisher.rs kafka/transactions/session.rs kafka/transactions/worker.rs"),
    (
        "brokers",
        "memory/broker.rs memory/connector.rs memory/faults.rs memory/publisher.rs \
         memory/subscription.rs",
    ),
    ("migrations", "backend.rs error.rs line.rs status.rs"),
    ("outbox", "nodes/handle.rs nodes/renewal.rs"),
    ("outbox", "postgres/enqueue.rs postgres/nodes.rs"),
    ("outbox", "producer.rs store.rs"),
    ("outbox", "transaction/run.rs transaction/running.rs"),
    ("relay/adopt", "takeover/check.rs takeover/facts.rs takeover/roles.rs"),
    ("relay/operate", "dead/choosing.rs dead/select.rs"),
    ("relay/operate", "dead/decide.rs dead/outcome.rs dead/plan.rs"),
    ("relay/operate", "dead/list.rs dead/reading.rs"),
    ("relay/operate", "verify/alive.rs verify/sources.rs"),
    ("relay", "cli/failure.rs cli/output/mod.rs"),
    ("relay", "cli/migrate.rs cli/roles.rs"),
    (
        "relay/web",
        "page/app.rs page/application.rs page/following.rs page/gate.rs page/login.rs page/stream.rs",
    ),
    ("relay/web", "page/pages/causes.rs page/pages/dead.rs"),
    ("testkit/checker", "checks/mod.rs verdict/mod.rs"),
    ("testkit/conformance", "case.rs publisher/mod.rs subscription/mod.rs"),
    ("testkit/proxy", "connection.rs pump.rs server.rs"),
    ("testkit", "consuming.rs observed.rs world.rs"),
    ("testkit", "sagas/course.rs sagas/everywhere.rs"),
    (
        "tests/benches",
        "cli.rs enqueue.rs idempotency/mod.rs inbox_guard.rs latency/mod.rs peers/mod.rs \
         relay_drain.rs relay_flat.rs relay_handover.rs relay_idle.rs relay_memory.rs \
         relay_metrics.rs relay_parked/delay.rs relay_parked/drain.rs relay_parked/memory.rs \
         relay_parked/mod.rs relay_transactions.rs retention.rs saga_steps.rs",
    ),
    (
        "tests/simulation",
        "broker/group.rs broker/log.rs broker/publisher.rs broker/subscription.rs chaos.rs fleet.rs \
         history.rs inbox/store.rs inbox/transaction.rs memory.rs outbox/checkpoint_store.rs \
         outbox/connection.rs outbox/history.rs outbox/reader.rs outbox/store.rs outbox/tables.rs \
         producers.rs run.rs world.rs",
    ),
    ("tests", "copies.rs roles.rs stage.rs trial.rs"),
    (
        "tests/storm",
        "backpressure.rs consume/process.rs load/client.rs load/work.rs sagas/worker.rs \
         setup/broker.rs setup/database.rs setup/mod.rs setup/processes.rs setup/sagas.rs",
    ),
    ("tests/storm", "sagas/checkout.rs sagas/services.rs"),
    ("xtask", "mutants/copy.rs mutants/finder.rs mutants/patch.rs"),
];

type Files<'a> = BTreeSet<&'a str>;

/// An arrow between two modules, and what the first one needs of the second.
#[derive(Debug, Clone, Copy)]
struct Arrow<'a> {
    from: usize,
    to: usize,
    names: &'a BTreeSet<String>,
}

impl Modules {
    fn arrows(&self) -> impl Iterator<Item = Arrow<'_>> {
        let needs = self.needs.iter().zip(0..);
        needs.flat_map(|(needs, from)| needs.iter().map(move |(to, names)| Arrow { from, to: *to, names }))
    }

    /// Returns the largest circles.
    fn circles(&self) -> Vec<Files<'_>> {
        self.circles_among(&(0..self.files.len()).collect(), None)
    }

    /// Returns the largest circles of some modules, or those that are left without one of the
    /// arrows.
    fn circles_among(&self, modules: &BTreeSet<usize>, cut: Option<Arrow<'_>>) -> Vec<Files<'_>> {
        let is_cut = |from: usize, to: usize| cut.is_some_and(|cut| cut.from == from && cut.to == to);
        let reached_from = |from: &usize| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![*from]);
            while let Some(module) = open.pop() {
                let next = self.needs[module].keys().copied();
                let next = next.filter(|to| modules.contains(to) && !is_cut(module, *to));
                open.extend(next.filter(|to| reached.insert(*to)));
            }
            (*from, reached)
        };
        let reached: BTreeMap<usize, BTreeSet<usize>> = modules.iter().map(reached_from).collect();
        let circle = |module: &usize| -> Files<'_> {
            let both = reached[module].iter().filter(|other| reached[*other].contains(module));
            both.map(|other| self.files[*other].as_str()).collect()
        };
        let circles: BTreeSet<Files<'_>> = modules.iter().map(circle).collect();
        circles.into_iter().filter(|circle| circle.len() > 1).collect()
    }

    /// Returns the arrow of a circle without which the fewest files are in circles that are not
    /// listed, and of several the one that needs the fewest names.
    fn weakest(&self, circle: &Files<'_>, listed: &[Files<'_>]) -> Option<Arrow<'_>> {
        let modules = (0..self.files.len()).filter(|module| circle.contains(self.files[*module].as_str()));
        let modules: BTreeSet<usize> = modules.collect();
        let inside =
            self.arrows().filter(|arrow| modules.contains(&arrow.from) && modules.contains(&arrow.to));
        inside.min_by_key(|arrow| {
            let left = self.circles_among(&modules, Some(*arrow));
            let left = left.iter().filter(|left| !listed.iter().any(|listed| left.is_subset(listed)));
            (left.map(BTreeSet::len).sum::<usize>(), arrow.names.len())
        })
    }
}

fn shown(files: &Files<'_>) -> String {
    files.iter().copied().collect::<Vec<_>>().join(" ")
}

/// Returns the circles of a crate that are not listed, and the entries that are too long.
fn faults(folder: &str, modules: &Modules, listed: &[&str]) -> Vec<String> {
    let listed: Vec<Files<'_>> = listed.iter().map(|files| files.split_whitespace().collect()).collect();
    let circles = modules.circles();
    let mut faults = Vec::new();
    for circle in circles.iter().filter(|circle| !listed.iter().any(|listed| circle.is_subset(listed))) {
        let Some(Arrow { from, to, names }) = modules.weakest(circle, &listed) else { continue };
        let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        faults.push(format!(
            "{folder}: a circle of {} files: {}. Cut {} -> {}: move what the first needs of the second ({names}) to a \
             file below both, or the code that needs it to one above",
            circle.len(),
            shown(circle),
            modules.files[from],
            modules.files[to],
        ));
    }
    for entry in &listed {
        let inside: Vec<_> = circles.iter().filter(|circle| circle.is_subset(entry)).collect();
        let has_grown = circles.iter().any(|circle| circle.is_superset(entry));
        if has_grown || inside.contains(&entry) {
            continue;
        }
        let left =
            inside.iter().map(|circle| format!("[{}]", shown(circle))).collect::<Vec<_>>().join(" and ");
        let left = if left.is_empty() { String::from("nothing") } else { left };
        faults
            .push(format!("{folder}: of the listed circle [{}] {left} is left: correct LEFT", shown(entry)));
    }
    faults
}

/// A file is understood with those that it stands on, and none of these needs it.
#[test]
fn no_modules_need_each_other() {
    let sources = texts(&[".rs"]);
    let mut crates: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (path, _) in &sources {
        let root = path.strip_suffix("lib.rs").or_else(|| path.strip_suffix("main.rs"));
        let is_root = |folder: &&str| *folder == "src/" || folder.ends_with("/src/");
        crates.extend(root.filter(is_root).map(|folder| (folder, BTreeMap::new())));
    }
    for (path, text) in &sources {
        for (folder, files) in &mut crates {
            files.extend(path.strip_prefix(folder).map(|file| (file, text.as_str())));
        }
    }
    assert!(crates.len() > 20, "only {} crates", crates.len());
    let mut found = Vec::new();
    for (folder, files) in &crates {
        let folder = folder.trim_end_matches("src/").trim_end_matches('/');
        let listed: Vec<_> =
            LEFT.iter().filter(|(name, _)| *name == folder).map(|(_, files)| *files).collect();
        found.extend(faults(folder, &Modules::of(files), &listed));
    }
    let unknown = LEFT
        .iter()
        .filter(|(name, _)| !crates.keys().any(|folder| folder.trim_end_matches("/src/") == *name));
    found
        .extend(unknown.map(|(name, _)| format!("{name}: no such crate, but LEFT lists one of its circles")));
    assert_none(&found);
}

/// A made-up crate with one circle, `shop/mod.rs` and `stock.rs`, which is hidden behind a
/// re-export.
const SHOP: [(&str, &str); 7] = [
    (
        "lib.rs",
        "//! use crate::stock;\nmod money;\nmod shop;\nmod stock;\npub use shop::{Order as Bought, price};",
    ),
    (
        "shop/mod.rs",
        "mod price;\npub use price::price;\npub use crate::money::Price;\nuse crate::stock::{self, Stock};\n\
         pub struct Order(Stock);",
    ),
    ("shop/price.rs", "use super::Order;\npub fn price(of: &Order) -> crate::money::Price { todo!() }"),
    ("stock.rs", "pub struct Stock;\nfn sold(order: &crate::Bought) -> u64 { super::money::count('\"') }"),
    (
        "money.rs",
        "pub struct Price;\npub fn count(sign: char) -> u64 { let text = \"crate::shop::Order\"; /* crate::shop::Order */ 1 }\n\
         #[cfg(test)]\nuse crate::stock::Stock;\n#[cfg(test)]\nmod tests { fn test() { crate::shop::price(Stock) } }",
    ),
    ("tests.rs", "use crate::shop;"),
    ("stock_tests.rs", "use super::*;"),
];

fn changed(file: &str, from: &str, to: &str) -> Modules {
    let sources = SHOP.map(|(path, text)| {
        assert!(path != file || text.contains(from), "{file} has no {from:?}");
        (path, if path == file { text.replace(from, to) } else { text.to_owned() })
    });
    Modules::of(&sources.iter().map(|(path, text)| (*path, text.as_str())).collect())
}

#[test]
fn a_circle_is_found_behind_a_re_export_and_nothing_else_is_one() {
    let shop = changed("lib.rs", "", "");
    assert_eq!(shop.files, ["lib.rs", "money.rs", "shop/mod.rs", "shop/price.rs", "stock.rs"]);
    assert_eq!(shop.circles(), [Files::from(["shop/mod.rs", "stock.rs"])]);
    let none = changed("stock.rs", "&crate::Bought", "&u64");
    assert_eq!(none.circles(), Vec::<Files<'_>>::new());
    for (file, from, to) in [
        ("stock.rs", "&crate::Bought", "&super::shop::Order"),
        ("stock.rs", "&crate::Bought", "&r#\"\"#; use crate::{money::{self}, shop::{Order as O}}"),
        (
            "stock.rs",
            "pub struct Stock;",
            "pub struct Stock;\nmod inner { pub(crate) use super::super::shop::*; }",
        ),
    ] {
        assert_eq!(changed(file, from, to).circles().len(), 1, "{to}");
    }
}

#[test]
fn a_circle_is_told_with_the_edge_to_cut() {
    let shop = changed("lib.rs", "", "");
    let [fault] = &faults("shop", &shop, &[])[..] else { panic!("one circle") };
    assert!(fault.contains("2 files: shop/mod.rs stock.rs. Cut stock.rs -> shop/mod.rs"), "{fault}");
    assert!(fault.contains("(Bought)"), "{fault}");
    // Listed, it may stay; its entry may be neither too short nor too long.
    assert_eq!(faults("shop", &shop, &["stock.rs shop/mod.rs"]), Vec::<String>::new());
    let grown = changed("money.rs", "pub struct Price;", "pub struct Price(crate::shop::Order);");
    let [fault] = &faults("shop", &grown, &["stock.rs shop/mod.rs"])[..] else { panic!("one circle") };
    assert!(fault.contains("Cut money.rs -> shop/mod.rs") && fault.contains("(Order)"), "{fault}");
    let [fault] = &faults("shop", &shop, &["money.rs shop/mod.rs stock.rs"])[..] else { panic!("one entry") };
    assert!(fault.contains("[shop/mod.rs stock.rs] is left"), "{fault}");
    let cut = changed("stock.rs", "&crate::Bought", "&u64");
    let [fault] = &faults("shop", &cut, &["shop/mod.rs stock.rs"])[..] else { panic!("one entry") };
    assert!(fault.contains("nothing is left"), "{fault}");
}
