//! The overview at night: what is wrong, why, since when and what to do, on the first screen of a
//! phone; and a page whose server has stopped.

use base64::Engine as _;
use tests::{Failure, Outcome, Stage, eventually};

use super::browser::{PAGES, logged_in};
use super::driver::Browser;
use super::scene::DEAD;
use super::{ANN, Served};

/// Width and height of the windows in which every page must be readable, in pixels.
const WINDOWS: [(u32, u32); 3] = [(360, 740), (768, 1_024), (1_280, 900)];

/// Elements of the content that extend beyond the right edge of the window, or of a box that cuts
/// them off without a mark.
const CUT: &str = "\
    return [...document.querySelectorAll('main *')].filter((it) => it.checkVisibility() \
        && !it.closest('.hidden, svg, pre, thead') && it.getBoundingClientRect().right > innerWidth + 1) \
        .map((it) => it.outerHTML.slice(0, 120))";

/// The text in the first window.
const FIRST: &str = "\
    const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT); \
    let text = ''; \
    while (walker.nextNode()) { const range = document.createRange(); range.selectNodeContents(walker.currentNode); \
        const box = range.getBoundingClientRect(); \
        if (box.height > 0 && box.bottom <= innerHeight) text += walker.currentNode.textContent + ' '; } \
    return text";

/// Goal: an operator who is woken up sees on a phone which pipeline needs attention, why, since
/// when and what to press, and on another page where it is. Oracle: the text of the first screen,
/// the messages behind its link, and the place of the present tab.
pub(crate) async fn phone(stage: Stage) -> Outcome {
    let served = Served::at_night(&stage).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    browser.look("light", 360, 740).await?;
    browser.go(&format!("http://{}/", served.address)).await?;
    let first = browser.run(FIRST).await?;
    let first = first.as_str().unwrap_or_default();
    for part in ["of 4 pipelines", "of 1 consumer", "returns", "does not answer"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let header = browser.run("return document.querySelector('.top').offsetHeight").await?;
    assert!(header.as_i64() <= Some(96), "the header takes {header} pixels");
    let cut = "const it = document.getElementById('as-of'); return it.scrollWidth - it.clientWidth";
    let cut = browser.run(cut).await?;
    assert!(cut.as_i64() <= Some(0), "{cut} pixels of the time are cut");
    let mark = "return getComputedStyle(document.getElementById('pages'), '::after').visibility";
    assert_eq!(browser.run(mark).await?, "visible", "nothing shows that there are more pages");
    let plots = browser.run("return document.getElementById('last-hour').open").await?;
    assert_eq!(plots, false, "the plots take most of a phone's page");
    // Worst first: an unavailable database comes before a pause that holds messages back, then dead
    // messages, then those of consumers.
    let heads = "return [...document.querySelectorAll('.sick h2')].map((it) => it.innerText.trim())";
    let heads = browser.run(heads).await?;
    let heads: Vec<&str> = heads.as_array().into_iter().flatten().filter_map(|it| it.as_str()).collect();
    assert_eq!(heads, ["returns", "billing", "shipping", "workload consumer"]);
    let card = browser.run("return document.querySelectorAll('.sick')[2].innerText").await?;
    let card = card.as_str().unwrap_or_default();
    for part in [
        "2,009 messages are dead",
        "since ",
        "for example: the carrier refused parcel ",
        "beside 2 other causes",
        "(7h",
        "Requeue…",
        "What to do",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    let fine = browser.run("return document.querySelector('.fine').innerText").await?;
    assert!(fine.as_str().is_some_and(|text| text.contains("orders")), "{fine}");
    // The link leads to exactly these messages.
    let link = "return [...document.querySelectorAll('.sick')[2].querySelectorAll('a')]\
                .find((it) => it.textContent.startsWith('Show these')).href";
    let link = browser.run(link).await?.as_str().ok_or("no link")?.to_owned();
    let path = link.split_once(&served.address).ok_or("a foreign link")?.1;
    let rows = served.ann().get(path).await?.body;
    assert!(rows.matches("the carrier refused parcel").count() >= 50, "{rows}");
    assert!(!rows.contains("no price for zone"), "{rows}");
    let all = served.ann().get("/dead?pipeline=shipping").await?.body;
    assert!(all.contains("no price for zone"), "{all}");
    let count =
        served.workload.database.integer("SELECT count(*) FROM outbox_exception WHERE state = 'dead'");
    assert_eq!(usize::try_from(count.await?)?, DEAD);
    browser.go(&format!("http://{}/audit", served.address)).await?;
    let in_view = "const pages = document.getElementById('pages'); \
                   const tab = pages.querySelector('[aria-current]').getBoundingClientRect(); \
                   return pages.scrollLeft > 0 && tab.left >= 0 && tab.right <= innerWidth";
    assert_eq!(browser.run(in_view).await?, true, "the present tab is not in view");
    browser.quit().await?;
    served.relay.stop().await
}

/// Goal: every page can be read at three widths and in both themes. Oracle: nothing is wider than
/// the window and nothing is cut. Pictures are stored where `OUTBOX_SCREENSHOTS` says.
pub(crate) async fn looks(stage: Stage) -> Outcome {
    let served = Served::at_night(&stage).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    let pages = PAGES.iter().map(ToString::to_string);
    let pages = pages.chain(
        [
            "/pipeline?name=billing",
            "/pipeline?name=shipping",
            "/message?id=1000001",
            "/pause?pipeline=orders",
        ]
        .map(String::from),
    );
    let pages: Vec<String> = pages.collect();
    for (width, height) in WINDOWS {
        for scheme in ["light", "dark"] {
            browser.look(scheme, width, height).await?;
            for path in &pages {
                browser.go(&format!("http://{}{path}", served.address)).await?;
                let wider = browser.run("return document.documentElement.scrollWidth - innerWidth").await?;
                assert!(wider.as_i64() <= Some(0), "{path} is {wider} wider than a window of {width}");
                let cut = browser.run(CUT).await?;
                assert!(cut.as_array().is_some_and(Vec::is_empty), "{path} at {width}: {cut}");
                keep(&browser, path, &format!("{scheme}-{width}")).await?;
            }
            browser.go(&format!("http://{}/dead", served.address)).await?;
            browser.press("input[name=row]").await?;
            browser.press("button[value=discard]").await?;
            browser.shows("Discard 1 message?").await?;
            keep(&browser, "/dead/confirm", &format!("{scheme}-{width}")).await?;
        }
    }
    browser.quit().await?;
    served.relay.stop().await
}

/// Goal: a page whose server has stopped shows this, and how old it is. Oracle: the banner, within
/// fifteen seconds.
pub(crate) async fn gone(stage: Stage) -> Outcome {
    let served = Served::at_night(&stage).await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    let stale = "return document.getElementById('stale').hidden";
    eventually("the page follows", || async {
        let state = browser.run("return document.getElementById('follow').dataset.state").await?;
        Ok((state == "live" && browser.run(stale).await? == true).then_some(()))
    })
    .await?;
    served.relay.stop().await?;
    let since = std::time::Instant::now();
    browser.shows("the relay does not answer").await?;
    assert!(since.elapsed().as_secs() < 15, "only after {:?}", since.elapsed());
    browser.shows("Connection lost").await?;
    keep(&browser, "/gone", "light-1280").await?;
    browser.quit().await
}

async fn keep(browser: &Browser, path: &str, look: &str) -> Result<(), Failure> {
    let Some(folder) = std::env::var_os("OUTBOX_SCREENSHOTS").map(std::path::PathBuf::from) else {
        return Ok(());
    };
    let name: String = path.chars().map(|char| if char.is_alphanumeric() { char } else { '-' }).collect();
    let picture = base64::engine::general_purpose::STANDARD.decode(browser.whole_picture().await?)?;
    std::fs::write(folder.join(format!("page{name}-{look}.png")), picture)?;
    Ok(())
}
