//! The page for users with impaired sight and users without a mouse: by the rules of axe-core, in
//! light and dark, on a screen and on a phone, and by keyboard.

use base64::Engine as _;
use serde_json::{Value, json};
use tests::{Failure, Outcome, Stage, eventually};

use super::browser::{PAGES, logged_in};
use super::driver::Browser;
use super::{ANN, Served, USERS};

/// Environment variable with the path of axe-core.
const AXE: &str = "OUTBOX_AXE";

/// Width and height of a window, in pixels.
const SCREEN: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 844);

/// Rules of the Web Content Accessibility Guidelines 2.2, levels A and AA, and best practices. The
/// script reports the rule, the element, and the reason.
const RUN: &str = "\
    const only = { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }; \
    return axe.run(document, { runOnly: only, resultTypes: ['violations'] }).then((found) => ({ \
        passes: found.passes.length, \
        violations: found.violations.flatMap((it) => it.nodes.map((node) => \
            `${it.id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`)) }));";

/// Elements where the keyboard stops, in the order of the page.
const STOPS: &str = "\
    return [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex=\"0\"]')]\
        .filter((it) => !it.disabled && it.checkVisibility({ visibilityProperty: true }) && it.tabIndex >= 0).map(";
/// Names an element by its index among all elements.
const NAME: &str = "\
    const name = (it) => [...document.querySelectorAll('*')].indexOf(it) + ' ' + it.outerHTML.slice(0, 80); ";

/// Returns whether `cargo xtask test` has found axe-core.
pub(crate) fn is_there() -> bool {
    std::env::var_os(AXE).is_some()
}

/// Checks the rules in light mode on a screen. The colours do not depend on the width, so each
/// scheme is checked once.
pub(crate) async fn light(stage: Stage) -> Outcome {
    readable(stage, &[("light", SCREEN)], true).await
}

/// Checks the rules in dark mode on a phone.
pub(crate) async fn dark(stage: Stage) -> Outcome {
    readable(stage, &[("dark", PHONE)], true).await
}

/// Checks only the widths, in the combinations that the others leave out.
pub(crate) async fn widths(stage: Stage) -> Outcome {
    readable(stage, &[("dark", SCREEN), ("light", PHONE)], false).await
}

/// Goal: the page can be read in light and dark, on a phone, and with impaired sight. Oracle: the
/// width of each page, and no violation found by axe-core.
async fn readable(stage: Stage, looks: &[(&str, (u32, u32))], by_rules: bool) -> Outcome {
    let axe = std::fs::read_to_string(std::env::var_os(AXE).ok_or("no axe-core")?)?;
    let served = Served::start(&stage, USERS, "").await?.with_dead(3).await?;
    served.workload.place_many(4, 12).await?;
    // Messages for a missing topic wait, so every page shows a waiting message.
    served.workload.database.append("a-topic-that-is-not-there", "key-of-it", "{}").await?;
    let mut found = Vec::new();
    let browser = Browser::start(&stage, true).await?;
    browser.go(&format!("http://{}/login", served.address)).await?;
    found.extend(look_at(&browser, &axe, "the login form").await?);
    drop(browser);
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    let row = served.rows().await?.remove(0);
    let id = row.split('/').nth(1).ok_or("no id")?;
    let pages = PAGES.iter().map(ToString::to_string);
    let pages: Vec<String> =
        pages.chain([format!("/message?id={id}"), "/pause?pipeline=orders".into()]).collect();
    let folder = std::env::var_os("OUTBOX_SCREENSHOTS").map(std::path::PathBuf::from);
    for (scheme, (width, height)) in looks {
        browser.look(scheme, *width, *height).await?;
        for path in &pages {
            browser.go(&format!("http://{}{path}", served.address)).await?;
            let wider = browser.run("return document.documentElement.scrollWidth - innerWidth").await?;
            assert!(wider.as_i64() <= Some(0), "{path} is {wider} wider than a window of {width}");
            if by_rules {
                found.extend(look_at(&browser, &axe, path).await?);
            }
            if let Some(folder) = &folder {
                let name = path.split('?').next().unwrap_or_default().trim_matches('/').replace('/', "-");
                let picture = base64::engine::general_purpose::STANDARD.decode(browser.picture().await?)?;
                std::fs::write(folder.join(format!("{name}-{scheme}-{width}.png")), picture)?;
            }
        }
    }
    browser.go(&format!("http://{}/dead", served.address)).await?;
    browser.press("input[name=row]").await?;
    browser.press("button[value=discard]").await?;
    browser.shows("Discard 1 message?").await?;
    found.extend(look_at(&browser, &axe, "a decision").await?);
    assert!(found.is_empty(), "{}", found.join("\n"));
    // Control: the rules do report an existing violation.
    browser.run("document.querySelector('main').append(new Image())").await?;
    let found = look_at(&browser, &axe, "a picture without a text").await?;
    assert!(found.iter().any(|it| it.contains("image-alt")), "{found:?}");
    browser.quit().await?;
    served.relay.stop().await
}

/// Returns the violations that axe-core finds on the current page. `what` names the page.
async fn look_at(browser: &Browser, axe: &str, what: &str) -> Result<Vec<String>, Failure> {
    let told = browser.run(&format!("{axe}\n{RUN}")).await?;
    let passes = told["passes"].as_u64().unwrap_or_default();
    assert!(passes > 10, "only {passes} rules had something to look at");
    let violations = told["violations"].as_array().ok_or("axe-core told nothing")?;
    Ok(violations.iter().map(|it| format!("{what}: {}", it.as_str().unwrap_or_default())).collect())
}

/// Goal: everything can be reached and done without a mouse. Oracle: the tab key reaches everything
/// that can be pressed or filled in, in the order of the page, and the focus is visible; a decision
/// is made with keys alone.
pub(crate) async fn keyboard(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    // The page must not change during this test.
    browser.press("#follow").await?;
    for path in PAGES {
        browser.go(&format!("http://{}{path}", served.address)).await?;
        let stops = browser.run(&format!("{NAME} {STOPS} name)")).await?;
        let stops = stops.as_array().ok_or("no stops")?;
        assert!(stops.len() > 10, "{path}: {stops:?}");
        for (number, stop) in stops.iter().enumerate() {
            browser.key(TAB).await?;
            let at = browser.run(&format!("{NAME} return name(document.activeElement)")).await?;
            assert_eq!(at, *stop, "{path}: stop {number}");
            let shown = browser.run(SHOWN).await?;
            assert_eq!(shown, json!(true), "{path}: nobody sees that the keyboard is at {stop}");
        }
    }
    browser.go(&format!("http://{}/", served.address)).await?;
    browser.key(TAB).await?;
    let first = browser.run("return document.activeElement.className").await?;
    assert_eq!(first, "skip", "the first stop of the keyboard leads past the navigation");
    browser.key(ENTER).await?;
    at(&browser, "#content").await?;

    browser.go(&format!("http://{}/dead", served.address)).await?;
    to(&browser, "input[name=row]").await?;
    browser.key(' ').await?;
    to(&browser, "button[value=discard]").await?;
    browser.key(ENTER).await?;
    browser.shows("Discard 1 message?").await?;
    to(&browser, "input[name=reason]").await?;
    browser.fill("input[name=reason]", "by keys").await?;
    to(&browser, "form.card button.danger").await?;
    browser.key(ENTER).await?;
    browser.shows("1 of 1 message discarded").await?;
    browser.quit().await?;
    served.relay.stop().await
}

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';

/// Returns whether the focused element looks different without focus.
const SHOWN: &str = "\
    const it = document.activeElement; \
    const look = () => { const style = getComputedStyle(it); \
        return [style.outlineStyle, style.outlineWidth, style.boxShadow, style.backgroundColor, style.borderColor].join(); }; \
    const here = look(); it.blur(); const away = look(); it.focus({ focusVisible: true }); return here !== away;";

/// Presses the tab key until the focus is on the element of a selector.
async fn to(browser: &Browser, selector: &str) -> Outcome {
    for _ in 0..100 {
        if is_at(browser, selector).await? {
            return Ok(());
        }
        browser.key(TAB).await?;
    }
    Err(format!("the keyboard never comes to {selector}").into())
}

async fn at(browser: &Browser, selector: &str) -> Outcome {
    let what = format!("the keyboard is at {selector}");
    eventually(&what, || async { Ok(is_at(browser, selector).await?.then_some(())) }).await
}

async fn is_at(browser: &Browser, selector: &str) -> Result<bool, Failure> {
    let script = format!("return document.activeElement.matches('{selector}')");
    Ok(browser.run(&script).await? == Value::Bool(true))
}
