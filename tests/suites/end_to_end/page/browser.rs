//! The page in a headless Chromium: the tasks of its users, with and without scripts.

use tests::{Outcome, Stage, eventually};

use super::driver::{self, Browser};
use super::{ANN, EVE, Served, USERS};
use super::{access, consumer, decisions, front};

/// Every page that a viewer can open.
pub(crate) const PAGES: [&str; 13] = [
    "/",
    "/pipeline?name=orders",
    "/topics",
    "/held",
    "/dead",
    "/messages",
    "/consumers",
    "/keys",
    "/sagas",
    "/audit",
    "/doctor?pipeline=orders",
    "/verify?pipeline=orders",
    "/replay?pipeline=orders",
];

/// Fails without a browser or axe-core.
fn a_browser() -> Result<(), String> {
    let is_there = driver::is_there() && access::is_there();
    if is_there { Ok(()) } else { Err("OUTBOX_CHROMEDRIVER or OUTBOX_AXE is not set".into()) }
}

tests::cases! { "{case}":
    anywhere + postgres, if a_browser {
        an_operator_follows_and_decides_in_a_browser = decides,
        an_operator_decides_about_keys_in_a_browser = decisions::keys,
        an_operator_decides_about_sagas_in_a_browser = decisions::sagas,
        a_viewer_sees_no_button_in_a_browser = viewer,
        the_page_reads_without_scripts = without_scripts,
        "everybody_can_read_the_page/light" = access::light,
        "everybody_can_read_the_page/dark" = access::dark,
        "everybody_can_read_the_page/widths" = access::widths,
        the_page_needs_no_mouse = access::keyboard,
        "trouble_comes_first/phone" = front::phone,
        "trouble_comes_first/looks" = front::looks,
        a_page_without_its_server_says_so = front::gone,
        a_consumers_button_leaves_held_messages_alone = consumer::card,
    }
}

/// Starts a browser that is logged in and shows the pipelines.
pub(crate) async fn logged_in(
    stage: &Stage,
    served: &Served,
    name: &str,
    secret: &str,
    with_scripts: bool,
) -> Result<Browser, tests::Failure> {
    let browser = Browser::start(stage, with_scripts).await?;
    browser.go(&format!("http://{}/", served.address)).await?;
    browser.shows("Password or token").await?;
    browser.fill("input[name=name]", name).await?;
    browser.fill("input[name=secret]", secret).await?;
    browser.press("button.primary").await?;
    browser.shows("Overview").await?;
    Ok(browser)
}

/// Returns the number of dead messages in the navigation.
async fn dead(browser: &Browser) -> Result<String, tests::Failure> {
    let script = "return (document.querySelector('#to-dead .count') || { textContent: '' }).textContent";
    Ok(browser.run(script).await?.as_str().unwrap_or_default().to_owned())
}

/// Goal: an operator can do everything in a browser, from the login to the audit. Oracle: the text
/// shown, the state in the database, and no error in the browser's log.
async fn decides(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    browser.shows("Live").await?;
    eventually("two are dead", || async { Ok((dead(&browser).await? == "2").then_some(())) }).await?;
    // The mark survives only while the page is not reloaded.
    browser.run("window.mark = 1").await?;
    let served = served.with_dead_more(2, 3).await?;
    eventually("the page follows", || async { Ok((dead(&browser).await? == "3").then_some(())) }).await?;
    assert_eq!(browser.run("return window.mark").await?, 1, "followed without loading anew");
    browser.press("#follow").await?;
    browser.shows("Updates off").await?;
    let served = served.with_dead_more(3, 4).await?;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(dead(&browser).await?, "3", "a page that stands still stands still");
    browser.press("#follow").await?;
    eventually("the page follows again", || async { Ok((dead(&browser).await? == "4").then_some(())) })
        .await?;

    browser.go(&format!("http://{}/dead", served.address)).await?;
    browser.press("#choose-all").await?;
    browser.press("button[value=discard]").await?;
    browser.shows("Discard 4 messages?").await?;
    browser.fill("input[name=reason]", "sent by hand").await?;
    browser.press("form.card button.danger").await?;
    browser.shows("4 of 4 messages discarded").await?;
    assert_eq!(served.workload.database.integer("SELECT count(*) FROM outbox_audit").await?, 4);
    // Back from the result is the list, not the browser's question whether to send the form again.
    browser.run("history.back()").await?;
    browser.shows("No messages are waiting here.").await?;

    let served = served.with_dead_more(4, 5).await?;
    let row = served.rows().await?.remove(0);
    let id = row.split('/').nth(1).ok_or("no id")?;
    browser.fill(".find input", id).await?;
    browser.press(".find button").await?;
    browser.shows("Outbox of").await?;
    browser.fill("form.card input[name=reason]", "a customer asked").await?;
    browser.press("form.card button.primary").await?;
    browser.shows("padding").await?;
    browser.go(&format!("http://{}/audit", served.address)).await?;
    browser.shows("a customer asked").await?;

    browser.go(&format!("http://{}/pause?pipeline=orders", served.address)).await?;
    browser.fill("input[name=reason]", "look first").await?;
    browser.press("button.danger").await?;
    browser.shows("pipeline is paused by ann: look first").await?;
    browser.press(".waits a.button").await?;
    browser.fill("input[name=reason]", "looked").await?;
    browser.press("button.primary").await?;
    eventually("the pause is over", || async {
        Ok((!browser.text().await?.contains("is paused by")).then_some(()))
    })
    .await?;
    let complaints = browser.complaints().await?;
    let complaints: Vec<_> = complaints.iter().filter(|line| !line.contains("401 (Unauthorized)")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    browser.press(".who summary").await?;
    browser.press(".who button").await?;
    browser.shows("Password or token").await?;
    browser.quit().await?;
    served.relay.stop().await
}

/// Goal: a viewer sees everything except buttons. Oracle: the forms of every page.
async fn viewer(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let browser = logged_in(&stage, &served, "eve", EVE, true).await?;
    let id = served.rows().await?.remove(0).split('/').nth(1).ok_or("no id")?.to_owned();
    for path in PAGES.iter().map(ToString::to_string).chain([format!("/message?id={id}")]) {
        browser.go(&format!("http://{}{path}", served.address)).await?;
        let forms = browser.run("return document.querySelectorAll('main form[method=post]').length").await?;
        assert_eq!(forms, 0, "{path}");
        assert!(!browser.text().await?.contains("Pause…"), "{path}");
    }
    browser.quit().await?;
    served.relay.stop().await
}

/// Goal: reading needs no script. Oracle: each page with scripts disabled, and a decision.
async fn without_scripts(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, false).await?;
    for path in PAGES {
        browser.go(&format!("http://{}{path}", served.address)).await?;
        browser.shows("As of").await?;
        assert!(!browser.text().await?.contains("Live"), "{path} offers what needs a script");
    }
    browser.go(&format!("http://{}/dead", served.address)).await?;
    browser.press("input[name=row]").await?;
    browser.press("button[value=requeue]").await?;
    browser.shows("Requeue 1 message?").await?;
    browser.quit().await?;
    served.relay.stop().await
}
