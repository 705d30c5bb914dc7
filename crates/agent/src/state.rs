//! The state of the agent: one value, because its entry points (threads, the panic hook, the C
//! library's calls) take no argument. With a static in each module, nothing showed which of them a
//! forked child has to reset.

use crate::broken::Break;
use crate::channel::Offer;
use crate::control::Looks;
use crate::control_page::Page;
use crate::paging::Paging;
use crate::segments::Exchange;
use crate::start::Start;
use crate::swap::SwapShare;
use crate::threads::Stacks;

pub(crate) static AGENT: Agent = Agent {
    start: Start::new(),
    page: Page::new(),
    paging: Paging::new(),
    swap: SwapShare::new(),
    stacks: Stacks::new(),
    offer: Offer::new(),
    looks: Looks::new(),
    broken: Break::new(),
    exchange: Exchange::new(),
};

pub(crate) struct Agent {
    /// How it was started.
    pub start: Start,
    /// The memory that the program's threads share.
    pub page: Page,
    /// The pager, and its place in the ledger.
    pub paging: Paging,
    pub swap: SwapShare,
    pub stacks: Stacks,
    /// The connection offered to the next fork.
    pub offer: Offer,
    pub looks: Looks,
    pub broken: Break,
    /// Segments that relatives exchange.
    pub exchange: Exchange,
}
