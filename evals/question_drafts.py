"""Drafts of questions by rule, from a book's own sentences, without a language model.

Four kinds: a definition ('Which term means …?', 'What does SM stand for?'), a key term left out of a sentence, a number
left out before its unit, and the name of code that a sentence or table describes ('Which function …?'). Only a sentence
that can be read alone is asked about. Whether the book answers a draft, and in one way only, is checked by
`evals/made_questions.py`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from indexes.embedder import bundled_model_folder
from indexes.sentences import SpanKind, fence_after, split_spans
from indexes.types import StoredNode
from indexes.words import STOP_WORDS, count_words, is_chinese, is_identifier, terms_of
from rag.wording import load_glossary

MadeKind: TypeAlias = Literal["definition", "term", "number", "name"]
BLANK = "____"

_WORDS = (7, 38)
"""Fewest and most words of a sentence that is asked about."""
LONG = 18
"""From so many words on a sentence says enough of its subject to be read without those before it."""
_HEADING_WORDS = 10
"""Most words of a heading that is given with a question."""
_PREDICATE_WORDS = (4, 28)
_TERM_WORDS = 4
_LEAST_LEFT = 5
"""Content words that must stay when a term is left out."""

_MARKS = re.compile(r"(?<![\w*`])(\*{1,3})(?=\S)([^*`]+?)(?<=\S)\1(?![\w*])")
_EMPHASIS = re.compile(r"(?<![\w*`])(\*{1,3})(?=\S)([^*`\n]{2,40}?)(?<=\S)\1(?![\w*])")
_CODE = re.compile(r"(?<!`)`([^`\n]{2,60})`(?!`)")
_UNMARKED_NAME = re.compile(
    r"(?<![\w/.@\-])(?:__\w+__|__[a-z]\w*\(\)|[a-z]+[A-Z]\w*(?:\.\w+)?(?:\(\))?|\w+(?:::\w+)+|[A-Za-z]\w*_\w+(?:\(\))?"
    r"|[a-z]\w+\(\))(?![\w/(])"
)
_NAME = re.compile(r"(?:@|--?)?[A-Za-z_][\w.:\-]*(?:\(\))?")
_BEGINS_BADLY = re.compile(
    r"(?:this|that|these|those|it|its|they|their|them|he|she|such|here|there|hence|thus|therefore|however|so|and|but|or"
    r"|nor|also|then|now|next|finally|first|firstly|second|secondly|third|thirdly|lastly|note|notice|similarly"
    r"|otherwise|instead|moreover|furthermore|additionally|besides|likewise|conversely|consequently|accordingly"
    r"|nevertheless|nonetheless|meanwhile|again|still|yet|both|either|neither|another|others?|one|same|none|what|which"
    r"|who|how|why|where|because|see|let|suppose|assume|consider|try|remember|recall|imagine|say|we|our|i|my|you|your"
    r"|although|though|whereas|for (?:example|instance)|afterwards|up to|an? similar"
    r"|several|some|many|various|numerous|as such|in any case"
    r"|for ease|more|less|like|no|not|only|just|even|add|change|run|compile|make|open|copy|download|go|click"
    r"|check|edit|modify|look|start|begin|create|replace|implement|install|figure|table|listing|example|exercise"
    r"|solution|answer|question|hint|warning|tip|todo|step|part|in (?:fact|practice|general|principle|addition|that"
    r"|other words|particular|turn|contrast)|by contrast|on the (?:contrary|other)|for now|of course|after that"
    r"|as (?:an?|the|with|in|noted|of)|at (?:first|last)|if (?:not|so)|likely|probably|maybe|perhaps|unfortunately"
    r"|luckily|interestingly|inconveniently|clearly|obviously|basically|essentially|generally|familiari[sz]e|verify|observe|determine)\b",
    re.IGNORECASE,
)
_BEGINS_DANGLING = re.compile(
    r"(?:the|an?|each|every)\s+(?:[a-z\-]+\s+)?(?:first|second|third|last|next|latter|former|above|following|previous|"
    r"same|other|rest|result|results|output|code|listing|figure|table|example|exercise|solution|program|function|functions|"
    r"method|methods|argument|arguments|parameter|parameters|value|values|variable|variables|command|script|file|files|"
    r"call|calls|loop|step|steps|line|lines|option|options|approach|idea|goal|purpose|reason|problem|difference|"
    r"advantage|advantages|disadvantage|point|way|case|cases|thing|number|name|names|type|types|size|right|left|plot|"
    r"picture|image|diagram|graph|answer|question|task|page|text|author|authors|user|users|default|callback|callbacks|"
    r"object|objects|class|structure|field|fields|string|list|array|arrays|data|buffer|buffers|process|system|"
    r"operation|operations|algorithm|implementation|version|library|package|tool|document|guide|course|tutorial|"
    r"main|key|most|best|simplest|easiest|only|total|final|initial|original|new|current|corresponding|resulting|"
    r"returned|given|actual|whole|entire|full|complete|copy|sum|index|pointer|handle|message|error|time|cost)\b"
    r"(?!-| of\b)",
    re.IGNORECASE,
)
_POINTS_ELSEWHERE = re.compile(
    r"\b(?:this|these|those|above|below|following|previous(?:ly)?|earlier|here|we|our|us|i|my|me|let's|figure|fig|table|"
    r"listing|exercises?|episodes?|lessons?|chapters?|sections?|course|tutorial|slides?|see|former|latter|respectively|"
    r"as seen|if one were|aforementioned|mentioned|described|discussed|shown|shows|introduced|etc|"
    r"(?<!for )example|that's|the one|overall|"
    r"your change|suppose|assume|"
    r"says?|titled|still|(?:two|three|four|several) (?:\w*advantages|benefits|reasons|ways|problems|things)|"
    r"todo|likewise|green|red|blue|yellow|orange|colou?rs?|left-hand|right-hand|later|next|now|currently|today|"
    r"at present|presently|soon|also|instead(?! of)|both(?!.* and)|recent(?:ly)?|another|"
    r"such (?!as)|none|nothing|page|pages|"
    r"documentation|guide|link|links|website|click)\b"
    r"|\b(?:at|in|to|of|by|for|from|on|before|after) that\b|\bthe same (?:idea|as)\b|\balternative\b"
    r"|\bin the (?:other|second|third|latter|former|opposite|same) \w+|\bthe possible\b|\bis listed\b"
    r"|\bas follows\b|https?:|www\.|\b(?:too|it|them)\.?$"
    r"|\b(?:slightly|much|far|even) (?:more|less|[a-z]+er)\b(?!.*\bthan\b)",
    re.IGNORECASE,
)
_OF_AN_EXAMPLE = re.compile(r"`\w`|\b[A-Z]\w+ \d+ (?:is|must|should|can|may)\b")
"""A variable of one letter, or a numbered thing: `Requirement 1 should …`."""
_PRONOUN = re.compile(r"\b(?:it|they|them|their|that one|its|itself|themselves|he|his)\b", re.IGNORECASE)
_FIRST_CLAUSE_WORDS = 4
"""A pronoun after this many words most likely refers to the sentence's own subject."""
_REFERS_BACK = re.compile(r"\b(?:it|they|them)\b", re.IGNORECASE)
_CLAUSE_ENDS = re.compile(
    r"[,;:(]|\b(?:that|which|when|if|because|while|and|but|so|as|until|before|after|once|since|where|though|than)\b"
)
_NOUN_PHRASE = re.compile(
    r"\b(?:the|an?|each|every|of|in|on|by|per|between|with|into|from|for)\s+(?P<phrase>[A-Za-z][A-Za-z\-]+(?:\s[A-Za-z][A-Za-z\-]+){0,2}?)"
    r"(?=[,.;:)]|\s(?:is|are|was|were|of|in|on|to|and|or|that|which|can|cannot|may|must|will|should|for|by|with|from|has|have)\b)"
)
_PROPER = re.compile(r"(?<=[a-z,] )(?:[A-Z][\w\-+]{2,}|[A-Z]{3,})(?: [A-Z][\w\-+]*){0,2}(?![\w`.(])")
_ADJECTIVE = re.compile(
    r"\w+(?:ing|ly|ed|ical|tial|cial|ional|ous|ful|less|ible|ary)|(?!directive|primitive|archive|drive)\w+ive"
    r"|(?!executable|variable|table)\w+able|(?!intrinsic|arithmetic|logic|topic|metric|fabric|traffic|atomic)\w+ic"
)
_NOUN_ENDS = re.compile(
    r"(?:\s?[,.;:)”\"]|$|\s(?:is|are|was|were|has|have|had|can|cannot|could|may|might|must|will|would|should|does|do|of|in|on|"
    r"to|and|or|that|which|who|for|by|with|from|at|into|onto|as|per|when|if|while|where|because|before|after|between|during|"
    r"through|within|without|than|but|not|also|only|using|instead|since|so|across|over|under|until|via|allows?|provides?|"
    r"returns?|uses?|contains?|holds?|runs?|executes?|consists?|supports?|requires?|needs?|makes?|takes?|gives?|maps?|"
    r"shares?|reads?|writes?|launches|performs?|creates?|enables?|refers?|represents?|waits?|becomes?|depends?|works?|"
    r"helps?|reduces?|increases?|hides?|limits?|defines?|describes?)\b)"
)
"""What follows a noun phrase, never a word inside one."""
_WORD = re.compile(r"(?<![\w`/.])[A-Za-z][A-Za-z\-+]*(?![\w`/(]|\.\w)")
_BEFORE_NOUN = frozenset("the a an each every of per".split())
_BEFORE_VERB = frozenset("to can will not may must should we you they".split())
_NAMED = 3
"""What makes a noun phrase a term: that it is emphasised, defined, spelt out, a heading, or used so many times."""
_TIMES_EVERYDAY = 40
"""How often a book must use a single word, as a multiple of everyday English, for it to be a term: `daemon` 40 times in
a book on system administration, `possibility` 5 times."""
_MOST_NODES = 0.25
"""A term in more of a book's nodes than this is what the book is about; to leave it out asks nothing."""
_FINITE = re.compile(
    r"\b(?<!\bto )(?:is|are|was|were|has|have|can|cannot|may|must|will|should|does|do|allows?|provides?|returns?|"
    r"uses?(?! of\b)|contains?|holds?|runs?|executes?|consists?|supports?|requires?|needs?|makes?|takes?|gives?|means?|"
    r"maps?|stores?|shares?|reads?|writes?|accesses|access|launches|performs?|creates?|enables?|specifies|refers?|"
    r"represents?|copies|allocates?|synchronizes?|waits?|becomes?|depends?|works?|handles?|sets?|gets?|calls?|compiles?|loads?|moves?|"
    r"helps?|prevents?|ensures?|guarantees?|reduces?|increases?|improves?|hides?|limits?|defines?|describes?|measures?)\b"
)
_THE_SUBJECT = re.compile(rf"The (?P<phrase>[a-z][\w\-]*(?: [a-z][\w\-]*){{0,3}}?) (?={_FINITE.pattern})")
_RELATIVE_SUBJECT = re.compile(r"(?:[\w`\-]+\s){1,8}(?:which|that|who)\s")
"""A subject with a clause of its own: the sentence needs a second verb."""
_BAD_CHARACTERS = re.compile(
    r"[$\\{}|<>=→⇒•…#^~]|\]\(|\s--\s|:\s-\s|-{3,}|\?|!|://|\b\w+/\w+/\w+|\[[A-Z]\w+\]"
    r"|[a-z] (?:You|The|This|These|It|We|If|An?)\b(?! \d)"  # two lines that a text has run together
)
_GENERIC = frozenset(
    """argument arguments parameter parameters value values result results goal goals purpose idea reason problem
    problems difference differences advantage advantages default example examples way ways step steps case cases
    thing things part parts one ones first second third next last number numbers name names type types size
    sizes output input code codes program programs main only key point points solution solutions question
    questions answer answers note approach feature features option options fact rule rules method methods issue
    issues choice exercise task tasks aim objective reader user users people person version versions line lines
    file files text time times list end start beginning lot kind kinds set sets something everything anything
    nothing what which use uses there here work section chapter page author book lesson course tutorial guide
    details detail information documentation support requirement requirements limitation limitations exception
    exceptions benefit benefits drawback important good bad better best useful possible necessary available
    different same other new old more less most not must always never any all warning tip hint yes no true false
    none and or but if then else do don't very also both each every some many few often usually just even slow
    fast high low total order error errors license image images temperature performance accuracy expression
    expressions element elements iteration iterations integer instance instances double exponent bottleneck
    bottlenecks dependency dependencies division diffusion header headers offset boundary equation equations
    precision center centre place position direction range limit rate ratio area region volume distance object
    objects class classes structure structures string lists field fields item items member members operation
    operations computation computations calculation calculations procedure comparison manner couple mechanism
    technique techniques environment application applications software hardware platform project team model
    models standard standards data system systems state states status change changes access addition
    multiplication sum product variable variables constant constants character characters letter letters bit
    digit digits index indices address addresses thousand thousands million years days hours minutes seconds
    orders sequence sequences condition conditions conditional function functions call calls operator operators
    statement statements keyword keywords symbol symbols attribute attributes property properties assignment
    declaration definition definitions process processes level levels layer layers base top bottom left right
    side row rows column columns cell cells unit units block-size length width height depth shape figure
    extension extensions test tests device devices computer computers machine machines implementation
    implementations utilization usage efficiency cost overhead speed significant group groups parallel online
    alias round float union command script message disk repository semantics capacity lifetime library libraries
    module modules view views loop loops array arrays vector vectors dimension dimensions prefix algorithm
    interface chip enumeration architecture remainder reciprocal boolean tool tools subset subsets superset format
    formats source directory directories path paths package packages syntax flag flags execution equivalent concept
    concepts functionality platforms compiler compilers""".split()
)
"""Words that are no term by themselves, nor together (`command line`), nor behind a name (`HIP application`)."""
_VAGUE = frozenset(
    """argument arguments value values result results goal purpose idea reason problem problems difference example
    examples way ways step steps case cases thing things first second third next last number numbers different
    same other new old good bad better best useful possible necessary available important certain several
    various particular specific given own single single-precision whole entire more less most not must always
    never any all many few some each every both following above below previous current main only key basic
    simple usual normal common typical general large small big high low fast slow long short full empty actual
    real total required resulting corresponding needed used using called based respective start end beginning
    rest part parts kind kinds set lot exercise solution task question section chapter page author book lesson
    course tutorial guide documentation yes no true false and or but if then very also just even usually often
    great known existing
    takes has is are copy runs one two three four initial final function-call separate helper starting
    underlying selected provided returned such cached masked pointed overall wall terminates returns executes
    allows provides contains requires needs makes gives performs creates works handles""".split()
)
"""Words that no term has."""
_ASIDE = re.compile(
    r"\b(?:exercises?|solutions?|challenges?|assignments?|quiz|case stud(?:y|ies)|set-?up|install(?:ation|ing)?|"
    r"licen[cs]e|acknowledg\w*|contribut\w+|changelog|release notes|bibliography|further reading|prerequisites|"
    r"keypoints|instructor|preface|roadmap|how to ask|what's new|bug ?fix(?:es)?|deprecat\w+|"
    r"related (?:projects|software|work)|software related)\b|^version \d|\b(?:debug|test|build(?!ing blocks?\b))"
    r"|^\W*(?:\d[\d.]*\s+)?(?:learning )?(?:tasks?|references|objectives|discussion|schedule|index|support|changes|"
    r"history|credits)\W*(?:\d+\W*)?$",
    re.IGNORECASE,
)
"""Headings of sections that teach nothing."""
_BEGINS_WITH_VERB = re.compile(
    r"(?:[A-Za-z]+(?:ing|ed)|return|define|enable|disable|use|get|have|has|shuffle|cop(?:y|ies)|print|read|write|perform|call|"
    r"launch|execute|wait|record|decide|compute|calculate|allocate|free|synchronize|convert|apply|ensure|avoid|place|is|are|"
    r"was|can|do|does|don't|did|set|move|load|store|find|take|put|give|keep|allow|provide|reduce|increase|truncate|round|"
    r"whether|indicate|specif(?:y|ies)|represent|contain|include|support|require|need|help|prevent|measure|track|build|test|"
    r"submit|log|connect|select|choose|pass|declare|initiali[sz]e|display|show|report|collect|map|update|delete|remove|"
    r"override|control|limit|register|query|retrieve|obtain|insert|append|combine|multiply|add|subtract|divide|sum|sort|"
    r"search|scan|filter|generate|produce|draw|simulate|work|turn|switch|fix|improve|optimi[sz]e|minimi[sz]e|maximi[sz]e|"
    r"profile|debug|learn|understand|think|ask|tell|know|want|wish|prefer|expect|hope)s?\b",
    re.IGNORECASE,
)
_STREAMING = re.compile(
    r"(?:streaming|processing|computing|programming|scheduling|pinned|shared|unified|distributed)\b", re.IGNORECASE
)
_SIGNATURE = re.compile(r"`(?:class |def |void |int )?[A-Za-z_][\w.:]*(?:\([^`]*\))?`")
_THIRD_PERSON = re.compile(
    r"(?!This|Its|As|Threads|Bits|Bytes|Values|Arguments|Requires|Is\b)[A-Z][a-z]+(?<![su])s\s"
    r"(?!to\b|of\b|are\b|can\b|may\b|must\b|have\b).*[^:]$"
)
_OPENER = re.compile(
    r"(?:to|in|on|for|with|when|if|while|since|as|after|before|by|once|given|based|using|at|from|during|unless|until|under|"
    r"within|without|because|whenever|where|depending)\b",
    re.IGNORECASE,
)
_TITLE_IDLE = re.compile(
    r"\b(?:introduction|overview|summary|outline|exercises?|solutions?|examples?|notes?|conclusions?|background|"
    r"contents|preface|prerequisites|objectives?|questions?|key ?points?|usage|description|remarks?|resources?|"
    r"references?|demos?|tasks?|hints?|challenge|faq|appendix|see also|getting started|other|miscellaneous|terms|"
    r"glossary|frequently|what|how|why|when|which|is|are|do|does|can|using|about)\b",
    re.IGNORECASE,
)
_DEFINED = re.compile(
    r"(?:(?P<article>An?|The)\s+)?(?P<term>[A-Za-z][\w\-+/ ]{1,40}?)(?:\s+\((?P<short>[A-Z][A-Za-z]{1,7})\))?"
    r"\s+(?P<verb>is|are|means|refers to|denotes)\s+(?P<what>(?:an?|the|any|all|one|two)\b\s*(?:(?!: ).)+?)\.?$"
)
_INTRODUCED = re.compile(
    r"(?P<article>(?:An?|Each) )?(?P<marks>\*{1,2})(?P<term>[^*`\n]{3,40})(?P=marks)(?= (?:is|are|can|[a-z]+(?<!s)s) )"
)
"""A sentence about a term that it introduces: emphasised, and its subject."""
_SAYS_LITTLE = re.compile(
    r"(?:(?:it|they)\s+)?(?:one (?:half )?of|an? (?:separate|common|good|bad|important|key|crucial|major|useful|"
    r"powerful|popular|simple|exception|example|great|nice|new|very|bit|lot|way|must|challenge|problem|issue|result)|"
    r"the (?:same|only|first|next|last|main|most|best|following|default|reason|result|case|key|way|responsibility)|"
    r"(?:an? (?:\w+ ){0,3})?part of|not |also |"
    r"there )",
    re.IGNORECASE,
)
_CALLED = re.compile(
    r"(?P<what>.{12,140}?),?\s+(?P<verb>is|are)\s+(?:often |usually |commonly |also )?"
    r"(?:called|known as|termed|referred to as)\s+(?:an?\s+|the\s+)?(?P<term>[\w\-+/ ]{3,40}?)\.$"
)
_ENTRY = re.compile(
    r"(?P<term>`[^`\n]{2,60}`|\*\*[^*\n]{2,50}\*\*|\*[^*\n]{2,50}\*|[A-Z][\w\-+/ ]{2,40}?)(?:\s+\([^()]{1,30}\))?"
    r"\s*(?::|\s[-–—]{1,3}\s)\s*(?P<what>[^\s].{15,260})$",
    re.DOTALL,
)
_EXPANDED = re.compile(r"\b(?P<long>[A-Z]?[A-Za-z]+(?:[\s\-][A-Za-z]+){1,5})\s+\((?P<short>[A-Z]{2,6})(?P<plural>s?)\)")
_ABBREVIATION = re.compile(r"\b([A-Z]{2,6})s?\b")
_UNITS = (
    r"threads?|bytes?|bits?|[kKMGT]i?B/s|[kKMGT]i?B|[kMGT]bit/s|(?:clock )?cycles|warps?|[nmµu]?s|%|percent|[kMG]Hz|"
    r"[MGT]FLOPS?(?:/s)?|W|watts?|nm|dimensional|billion|million|(?:multi)?processors|compute units|work-items|"
    r"(?!exercises|chapters|sections|parts|steps|examples|lines|versions|years|weeks|days|hours|people|students|files|"
    r"ways|times|is|has|was|as|this|its|us)[a-z]{2,}[a-rt-z]s"
)
_NUMBER = re.compile(
    r"(?<![\w.\-/:])(?P<number>\d{1,3}(?:[,\u202f]\d{3})+|\d+(?:\.\d+)?)"
    rf"(?P<gap>\s|-|\u00a0|\u202f)?(?P<unit>{_UNITS})(?![\w/])"
)
_USED_FOR = re.compile(
    r"To (?P<aim>[a-z][^,`]{8,110}), (?:you can |one can |you should |you may |simply |just )?use (?:the )?"
    r"(?P<name>`[^`]{2,50}`)(?P<noun> [a-z]+(?: [a-z]+)?)?(?:\.|:|$)"
)
_SUBJECT = re.compile(
    r"(?:(?:The\s)?|An?\s(?=[a-z]))(?P<before>(?:[a-z][a-z\-]*\s){0,3})(?P<name>`[^`\n]{2,60}`)"
    r"(?P<noun>(?: [a-z]+){0,3}?)\s+"
    r"(?P<rest>(?P<verb>is|can|will|must|may|has|"
    r"[a-z]+(?<!s)s(?! (?:are|were|can|may|must|have|will|of|that|which|[a-z]+ed)\b))\s.+)$",
    re.DOTALL,
)
_MAIN_CLAUSE_ENDS = re.compile(r"; |: |, (?:so|but|because|whereas|while|which means)\b|, and (?=`|the |an? |it )|\.?$")
_NOUNS = frozenset(
    """function method attribute macro decorator call variable keyword directive clause qualifier flag option command
    tool type class module header library property argument parameter specifier modifier routine construct
    pragma api constant field register instruction intrinsic operator compiler debugger profiler package
    namespace structure struct extension statement object array""".split()
)
_NOUNS_BEFORE = frozenset(
    """function method attribute macro decorator call keyword directive clause qualifier flag option command tool class
    specifier modifier routine intrinsic operator instruction pragma""".split()
)
"""Those that a name of code may follow and be no variable of a listing: `The keyword `__global__``."""
_SUBJECT_PHRASE = re.compile(
    r"(?:(?P<article>The|An?|Each|Every)\s)?(?P<phrase>[A-Za-z][\w\-]*(?:\s[A-Za-z][\w\-]*){1,4}?)\s(?P<rest>(?P<verb>is|are|can|"
    r"cannot|will|must|may|should|has|have|does|uses|returns|supports|runs|needs|stores|reads|writes|copies|works|handles|"
    r"helps|limits|measures|schedules|manages|specify|specifies|(?:allow|provide|contain|hold|execute|consist|require|make|"
    r"take|give|mean|perform|create|enable|refer|represent|allocate|synchronize|become|depend|prevent|ensure|guarantee|"
    r"reduce|increase|improve|hide|define|describe|distribute|assign|share)s?)\s(?!of\b|and\b|or\b|is\b|are\b|to\b).+)"
)
"""The subject of a sentence, of two words or more, with what is said of it."""
_MODALS = frozenset("can cannot will must may should".split())
_LINKS = re.compile(
    r"(?:however|therefore|thus|hence|consequently|as a result|moreover|furthermore|additionally|in addition|besides|"
    r"similarly|also|of course|in general|generally|in fact|in particular|unfortunately|fortunately|interestingly|"
    r"importantly|basically|essentially|obviously|clearly),\s+"
    r"|(?:please )?(?:note|notice|remember|recall)(?: also)? that\s+",
    re.IGNORECASE,
)
"""Words at the beginning of a sentence that only link it to the one before."""
_NOT_FIGURES = re.compile(rf"{_CODE.pattern}|\b[A-Z][\w+]*\s\d[\d.]*")
"""Code, and a name with its version."""
_FIGURE = re.compile(r"(?<!\w)\d")
_NOT_A_VERB = frozenset("this as its has was threads blocks bytes bits values ones".split()) | {
    f"{noun}s" for noun in _NOUNS - {"call", "construct", "register"}
}


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence, list item or table row that can be read alone.

    Attributes:
        quote: verbatim in its node's text.
        text: without emphasis, white space collapsed.
        signature: the name of code, with its arguments, that it follows and describes; the quote then begins with it.
    """

    node: StoredNode
    quote: str
    text: str
    kind: SpanKind
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that is not checked yet.

    Attributes:
        answer: a term, a name, a number with its unit.
        accepted: other wordings of the answer.
        options: what wrong options are drawn from: other answers of this class.
    """

    kind: MadeKind
    question: str
    answer: str
    statement: Statement
    options: str
    accepted: tuple[str, ...] = ()

    @property
    def promise(self) -> float:
        """How much of the heading over it its sentence says, 0 to 1: the more, the better the question."""
        heading = terms_of(" ".join(self.statement.node.heading_path[-1:])).pieces
        return len(heading & terms_of(self.statement.text).pieces) / max(1, len(heading))

    @property
    def is_off_topic(self) -> bool:
        """Whether its sentence says nothing of the two headings over it, or what is left out is a foreign name."""
        if self.kind not in ("term", "number"):
            return False
        headings = terms_of(" ".join(self.statement.node.heading_path[-2:])).pieces
        return not headings & terms_of(self.statement.text).pieces or (
            self.kind == "term" and is_foreign_name(self.answer)
        )


@dataclass(frozen=True, slots=True)
class Option:
    """A possible answer with its class and, where it is a number, the sections that contain it."""

    text: str
    options: str
    sections: frozenset[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a book in reading order, and what wrong options are drawn from."""

    drafts: tuple[Draft, ...]
    pool: tuple[Option, ...]


def draft_questions(nodes: Sequence[StoredNode]) -> Drafts:
    """All drafts of a book's nodes, in reading order."""
    statements = list(_statements(nodes))
    terms = _key_terms(nodes, statements)
    by_lower = {term.lower(): term for term in terms}
    subjects = [_in_lower_case(draft, nodes) for statement in statements if (draft := _subject(statement, by_lower))]
    abbreviations = Counter(short for node in nodes for short in set(_ABBREVIATION.findall(node.text)))
    drafts: list[Draft] = list(subjects)
    for statement in statements:
        if statement.signature:
            drafts.extend(_described_names(statement))
            continue
        drafts.extend(_expansions(statement, abbreviations))
        drafts.extend(_definitions(statement, by_lower))
        drafts.extend(_described_names(statement))
        drafts.extend(_numbers(statement))
        drafts.extend(_left_out(statement, by_lower))
    drafts = [_with_headings(draft) for draft in _with_one_answer(drafts)]
    pool: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for text in (*terms, *(draft.answer for draft in subjects)):
        pool[(text, term_class(text))] = set()
    for node in nodes:
        for match in _NUMBER.finditer(_bare(node.text)):
            pool[(_number_text(match), f"number {_unit(match)}")].add(node.heading_path)
    options = tuple(Option(text, group, frozenset(where)) for (text, group), where in pool.items())
    return Drafts(tuple(drafts), options)


def _in_lower_case(draft: Draft, nodes: Sequence[StoredNode]) -> Draft:
    """The draft, its answer without the capital of its sentence where the book also writes it so."""
    lower = _uncapital(draft.answer)
    return replace(draft, answer=lower) if any(f" {lower} " in node.text for node in nodes) else draft


def _with_one_answer(drafts: Sequence[Draft]) -> Iterator[Draft]:
    """Those whose question, all its words taken together, the book asks for no other answer."""
    asked: dict[str, list[tuple[frozenset[str], str]]] = defaultdict(list)
    for draft in drafts:
        asked[draft.kind].append((terms_of(draft.question).stems, draft.answer.lower()))
    for draft in drafts:
        words = terms_of(draft.question).stems
        if not any(words <= others and answer != draft.answer.lower() for others, answer in asked[draft.kind]):
            yield draft


# --- statements


def _statements(nodes: Sequence[StoredNode]) -> Iterator[Statement]:
    fence = ""
    path: tuple[str, ...] = ()
    for node in nodes:
        if node.heading_path != path:
            fence, path = "", node.heading_path
        before = f"{fence}\n" if fence else ""
        text = before + node.text
        fence = fence_after(node.text, fence)
        if is_chinese(node.text) or any(_ASIDE.search(heading) for heading in node.heading_path[-2:]):
            continue
        signature = -1
        for span in split_spans(text):
            if span.kind in ("sentence", "item"):
                quote = text[span.start : span.end]
                if _SIGNATURE.fullmatch(quote):
                    signature = span.start
                    continue
                if signature >= 0 and _THIRD_PERSON.match(quote):
                    whole = text[signature : span.end]
                    yield Statement(node, whole, _plain(quote), "sentence", whole.split("`")[1])
                signature = -1
                yield Statement(node, quote, _unlinked(_plain(quote)), span.kind)
            elif span.kind == "table":
                for row in text[span.start : span.end].splitlines():
                    cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
                    one_name = cells[0].startswith("`") and not any(cell.startswith("`") for cell in cells[1:])
                    if len(cells) in (2, 3) and one_name and " " in cells[-1]:
                        text_of_row = f"{_plain(cells[0])}: {_plain(cells[-1])}"
                        yield Statement(node, row.strip(), text_of_row, "table")


def _plain(text: str) -> str:
    """A text in one line without emphasis, and with names of code in backticks where it marks none, as in a PDF."""
    line = " ".join(_MARKS.sub(r"\2", text).split())
    return line if "`" in line else _UNMARKED_NAME.sub(r"`\g<0>`", line)


def _unlinked(text: str) -> str:
    """A sentence without what links it to the one before."""
    rest = _LINKS.sub("", text, count=1) if _LINKS.match(text) else text
    return rest[:1].upper() + rest[1:] if rest != text else text


def _bare(text: str) -> str:
    """A text without its listings, formulas and code spans."""
    kept = [text[span.start : span.end] for span in split_spans(text) if span.kind in ("sentence", "item", "table")]
    return _CODE.sub(" ", " ".join(kept))


def _reads_alone(text: str, kind: SpanKind = "sentence", *, has_verb: bool = False) -> bool:
    """Whether a sentence is whole and refers to nothing outside itself.

    Args:
        has_verb: it is known to have one.
    """
    low, high = _WORDS
    if re.match("The [^`]", text):  # short, it mostly speaks of what the sentence before has named
        low = LONG
    if not low <= count_words(text) <= high or (kind == "sentence" and not text.endswith((".", ".)", '."'))):
        return False
    if text.endswith((":", ";", ",", "…")) or ", so " in text:
        return False
    if not (text[0].isupper() or text[0] == "`") or _BAD_CHARACTERS.search(_CODE.sub("x", text)):
        return False
    if any(text.count(left) != text.count(right) for left, right in ("()", "[]")) or text.count("`") % 2:
        return False
    if text.count('"') % 2 or _BEGINS_BADLY.match(text) or _BEGINS_DANGLING.match(text):
        return False
    if _BEGINS_WITH_VERB.match(text) and not _STREAMING.match(text):
        return False
    if re.search(r"\b(?:or|and|but|with|of|to|the|an?|is|are|includes?)\.?$|\((?:left|right|top|bottom)\)", text):
        return False
    if _OF_AN_EXAMPLE.search(text):
        return False
    main = text
    if _OPENER.match(text):
        opener, comma, main = text.partition(", ")
        if not comma or _BEGINS_BADLY.match(main) or _BEGINS_DANGLING.match(main) or "(" in opener:
            return False
    clause = _main_clause(main)
    if has_verb:
        clause = f"is {clause}"
    relative = _RELATIVE_SUBJECT.match(clause)
    if len(_FINITE.findall(clause)) < 1 + (relative is not None and _FINITE.search(relative[0]) is None):
        return False
    if _POINTS_ELSEWHERE.search(_CODE.sub("x", text)):
        return False
    if re.search(r"\bthen\b", text) and not re.search(r"\b(?:if|when|once|after|first)\b", text, re.IGNORECASE):
        return False
    pronoun = _PRONOUN.search(text)
    if pronoun is not None and count_words(text[: pronoun.start()]) <= _FIRST_CLAUSE_WORDS:
        return False
    return _REFERS_BACK.search(_CLAUSE_ENDS.split(text, maxsplit=1)[0]) is None


def _main_clause(text: str) -> str:
    return re.split(r", (?:and|which|where|who|that|so|but|because|while)\b|;", re.sub(r"\([^)]*\)", "", text))[0]


# --- terms and names of a book


def _key_terms(nodes: Sequence[StoredNode], statements: Sequence[Statement]) -> list[str]:
    """Technical terms, as the book writes them: noun phrases that it uses several times, but not everywhere."""
    found: dict[str, float] = defaultdict(float)
    proper: Counter[str] = Counter()
    for statement in statements:
        for match in _EMPHASIS.finditer(statement.quote):
            found[match[2]] += _NAMED
        for match in _EXPANDED.finditer(statement.text):
            found[match["long"]] += _NAMED
        defined = _DEFINED.match(statement.text)
        if defined is not None and (defined["article"] or "") != "The":
            found[defined["term"]] += _NAMED
        for match in _NOUN_PHRASE.finditer(statement.text):
            found[match["phrase"].lower()] += 1 if " " in match["phrase"] else 0.7
        for match in _PROPER.finditer(statement.text):
            proper[match[0].lower()] += 1
    found.update({term: found[term] + count for term, count in proper.items()})
    for path in {node.heading_path for node in nodes}:
        found[_plain(path[-1]) if path else ""] += _NAMED
    for english in _subject_terms():
        found[english] += _NAMED
    named = {_singular(term.strip(" .:,;")) for term, count in found.items() if count >= _NAMED}
    wanted = named | {f"{term}s" for term in named}
    texts = [_bare(node.text) for node in nodes]
    num_words = sum(map(count_words, texts))
    uses = _uses(texts, {term for term in wanted if _is_term(term)})
    kept: list[str] = []
    for term, use in sorted(uses.items()):
        if use.count < 2 or use.nodes > _MOST_NODES * len(nodes) or use.whole < use.count / 2:
            continue
        if " " not in term and use.count < _TIMES_EVERYDAY * _everyday_share(term) * num_words:
            continue
        written = use.written.most_common(1)[0][0]
        if written[1:].islower() and proper[term] < use.count / 2:  # its capital is that of a sentence or heading
            written = term
        if use.as_noun > use.as_verb or (written[0].isupper() and proper[term] > 1):
            kept.append(written)
    return kept


def _everyday_share(word: str) -> float:
    """How much of everyday English text a word is, from its rank in the encoder's vocabulary (Zipf: a tenth of 1/rank).

    A term is a word used much more often than there (Ahmad and others, TREC-8 1999: weirdness).
    """
    ranks = _everyday_ranks()
    return 0.1 / (ranks.get(word) or ranks.get(_singular(word)) or len(ranks))


@lru_cache(maxsize=1)
def _everyday_ranks() -> dict[str, int]:
    """The vocabulary's whole words, the most frequent first, from 1."""
    listed = (bundled_model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = listed[listed.index("the") :]
    return {word: rank for rank, word in enumerate(words, 1)}


@dataclass(slots=True)
class _Use:
    """How a book uses a term: how often, in how many nodes, after which words, before what, and how it writes it."""

    count: int = 0
    nodes: int = 0
    as_noun: int = 0
    as_verb: int = 0
    whole: int = 0
    written: Counter[str] = field(default_factory=Counter)


def _uses(texts: Sequence[str], wanted: set[str]) -> dict[str, _Use]:
    found: dict[str, _Use] = defaultdict(_Use)
    for text in texts:
        here = set()
        for start, end, before in _word_runs(text):
            term = text[start:end].lower()
            if term in wanted:
                use = found[term]
                use.count += 1
                use.written[text[start:end]] += 1
                use.as_noun += before in _BEFORE_NOUN
                use.as_verb += before in _BEFORE_VERB
                use.whole += _NOUN_ENDS.match(text, end) is not None
                here.add(term)
        for term in here:
            found[term].nodes += 1
    return found


def _word_runs(text: str) -> Iterator[tuple[int, int, str]]:
    """Start and end of every run of up to `_TERM_WORDS` words with single spaces between, and the word before it."""
    words = [match.span() for match in _WORD.finditer(text)]
    for first, (start, end) in enumerate(words):
        before = text[slice(*words[first - 1])].lower() if first and words[first - 1][1] + 1 == start else ""
        yield start, end, before
        for last in range(first + 1, min(first + _TERM_WORDS, len(words))):
            if words[last][0] != words[last - 1][1] + 1 or not text[words[last][0] - 1].isspace():
                break
            yield start, words[last][1], before


@lru_cache(maxsize=1)
def _subject_terms() -> frozenset[str]:
    """Terms of the subject that the glossary knows, in English as they stand there and without the plural's s."""
    known = [rendering.best.lower() for rendering in load_glossary().values() if rendering.technical and rendering.best]
    return frozenset(form for term in known for form in (term, _singular(term)))


def is_foreign_name(term: str) -> bool:
    """Whether a term has a capital and the glossary does not know it."""
    return term[0].isupper() and _singular(term) not in _subject_terms()


def _is_term(term: str) -> bool:
    words = term.split()
    if not 1 <= len(words) <= _TERM_WORDS or not re.fullmatch(r"[A-Za-z][A-Za-z\-+/ ]{2,40}", term):
        return False
    if len(words) == 1 and (len(term) < 4 or is_identifier(term)):
        return False
    plain = [word.lower() for word in words]
    if any(word in STOP_WORDS or word in _VAGUE for word in plain):
        return False
    if plain[-1] in _GENERIC and all(word.isupper() or word.lower() in _GENERIC for word in words):
        return False
    if re.match(r"\w+(?:most|est)$", plain[0]) or plain[-1].endswith("ly"):
        return False
    if len(words) == 1 and _ADJECTIVE.fullmatch(plain[0]):
        return False
    return not _TITLE_IDLE.search(term)


def _singular(term: str) -> str:
    return term.lower().removesuffix("s")


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and len(text) >= 4 and (is_identifier(text) or text[0] in "@-")


def term_class(term: str) -> str:
    """Terms of one class can replace each other: number, words, capitals."""
    words = term.split()
    plural = "s" if words[-1].endswith("s") and not words[-1].endswith(("ss", "us", "is", "as", "ics")) else ""
    capital = "C" if term[0].isupper() else "c"
    return f"term {capital}{min(len(words), 2)}{plural}"


def other_capital(group: str) -> str:
    """The class of terms that differs in the capital alone."""
    return group.replace("term C", "term c") if group.startswith("term C") else group.replace("term c", "term C")


def _is_published(name: str) -> bool:
    """Whether a name looks like one that others call, not like a variable of a listing."""
    bare = name.removesuffix("()")
    return bare != name or name[0] in "@-" or bool(re.search(r"::|\.|[a-z][A-Z]|__|_t$|^[A-Z]+_[A-Z]", bare))


def name_noun(name: str) -> str:
    """What a name is by its form."""
    if name.endswith("()"):
        return "function"
    if name.startswith("@"):
        return "decorator"
    if name.startswith("-"):
        return "option"
    if name.endswith("_t"):
        return "type"
    if re.search(r"\.(?:hp?p?|cuh?|cpp|py|json|txt|so|dll)$", name):
        return "file"
    return "name"


# --- the kinds


def _expansions(statement: Statement, abbreviations: Mapping[str, int]) -> Iterator[Draft]:
    """'What does SM stand for?', where two nodes at least write SM."""
    for match in _EXPANDED.finditer(statement.text):
        short = match["short"]
        if abbreviations[short] < 2:
            continue
        words = re.split(r"[\s\-]", match["long"])
        for first in range(len(words)):
            tail = words[first:]
            content = [word for word in tail if word.lower() not in STOP_WORDS]
            if short in (_initials(tail), _initials(content)) and len(tail) > 1 and tail[0].lower() not in STOP_WORDS:
                start = len(match["long"]) - len(" ".join(tail))
                long = match["long"][start:]
                question = f"What do {short}s stand for?" if match["plural"] else f"What does {short} stand for?"
                yield Draft("definition", question, long, statement, "", (long.lower(),))
                break


def _initials(words: Sequence[str]) -> str:
    return "".join(word[0] for word in words).upper()


def _definitions(statement: Statement, terms: Mapping[str, str]) -> Iterator[Draft]:
    text = _main_part(statement.text)
    called = _CALLED.match(text) if _reads_alone(text, statement.kind) else None
    if called is not None and _is_term(called["term"]):
        what = _in_sentence(called["what"])
        if _fits(what, called["term"]):
            question = f"What {called['verb']} {what} called?"
            yield Draft("definition", question, called["term"], statement, term_class(called["term"]))
        return
    defined = _DEFINED.match(text) if _reads_alone(text, statement.kind) else None
    if defined is not None and _is_term(defined["term"]) and _fits(defined["what"], defined["term"], part=True):
        term, article = defined["term"], defined["article"]
        if article == "The" and term.lower() not in terms and term == term.lower():
            return
        answer = term if article else _as_used(term, terms)
        accepted = (defined["short"],) if defined["short"] else ()
        what = defined["what"].rstrip(".")
        if article is None and (defined["verb"] == "is") == (term_class(term)[-1] == "s"):
            return
        if re.search(r"\bbecause\b|, (?:and|but|so)\b", what) or _is_title(term, statement.node):
            return
        told = bool(terms_of(what).pieces & terms_of(term).pieces)  # then one option would stand out
        question = f"Which term means “{what}”?"
        yield Draft("definition", question, answer, statement, "" if told else term_class(answer), accepted)
        return
    introduced = _INTRODUCED.match(statement.quote)
    if introduced is not None and _is_term(introduced["term"]) and _reads_alone(text, has_verb=True):
        term, what = introduced["term"], text[introduced.end() - len(introduced["marks"]) * 2 :].rstrip(".")
        if _fits(what, term) and len(terms_of(what).stems) >= _LEAST_LEFT:
            answer = term if introduced["article"] else _as_used(term, terms)
            article = re.sub(r"^An? ", "A(n) ", introduced["article"] or "")
            yield Draft(
                "definition", f"Fill in the term: “{article}{BLANK}{what}.”", answer, statement, term_class(answer)
            )
        return
    entry = _ENTRY.match(text) if statement.kind == "item" else None
    if entry is not None and not entry["term"].startswith("`"):
        term = entry["term"].strip("* ")
        what = entry["what"].strip().rstrip(".")
        bold = statement.quote.lstrip().startswith("*")
        phrase = re.match(r"(?:an?|the|any|all|one|two)\s", what, re.IGNORECASE) is not None
        if bold and phrase and _is_term(term) and _fits(what, term) and _describes(what):
            yield Draft("definition", f"Which term is described by “{what}”?", term, statement, term_class(term))


def _described_names(statement: Statement) -> Iterator[Draft]:
    text = statement.text
    if statement.signature:
        name = re.sub(
            r"\(.*", "", statement.signature.split()[-1] if "(" not in statement.signature else statement.signature
        )
        what = _uncapital(text.rstrip("."))
        if _is_name(name) and _fits(what, name, part=True) and not _PRONOUN.match(what):
            noun = "function" if "(" in statement.signature else "identifier"
            if re.search(r"\b[A-Z]\w*[a-z]\w*$", name):
                noun = "class"
            yield Draft("name", f"Which {noun} {what}?", name, statement, "", _called(name))
        return
    used = _USED_FOR.match(text)
    if used is not None and _is_name(used["name"].strip("`")):
        name = used["name"].strip("`")
        noun = _noun(used["noun"], name)
        aim = used["aim"]
        if not _POINTS_ELSEWHERE.search(aim) and not _PRONOUN.search(aim):
            yield Draft("name", f"Which {noun} is used to {aim}?", name, statement, "", _called(name))
            return
    subject = _said_of_name(statement)
    if subject is not None:
        yield subject
        return
    entry = _ENTRY.match(text) if statement.kind in ("item", "table") else None
    if entry is not None and entry["term"].startswith("`"):
        name, what = entry["term"].strip("`"), entry["what"].strip().rstrip(".")
        shown = statement.kind == "table" or _is_published(name)
        if shown and _is_name(name) and _fits(what, name, part=True) and _describes(what):
            question = f"Which {_noun(_kind_of_section(statement.node), name)} is described by “{what}”?"
            yield Draft("name", question, name, statement, "", _called(name))


def _main_part(text: str) -> str:
    """A sentence up to the end of its main clause."""
    main = _MAIN_CLAUSE_ENDS.split(text, maxsplit=1)[0]
    return f"{main}." if main != text and text.endswith(".") else text


def _said_of_name(statement: Statement) -> Draft | None:
    """What a sentence says of the code that it begins with: 'Which keyword marks a function that runs on the GPU?'."""
    match = _SUBJECT.match(statement.text)
    if match is None or match["verb"] in _NOT_A_VERB or statement.text.endswith(":"):
        return None
    name = re.sub(r"\(.+\)$", "", match["name"].strip("`"))
    before, after = match["before"].removesuffix("to ").split(), match["noun"].split()
    if (
        not _is_name(name)
        or (before and (after or before[-1] not in _NOUNS_BEFORE))
        or (after and after[-1] not in _NOUNS)
    ):
        return None
    rest = _MAIN_CLAUSE_ENDS.split(match["rest"], maxsplit=1)[0]
    if (
        not _reads_alone(f"`{name}` {rest}.", has_verb=True)
        or not _fits(rest, name, part=True)
        or len(_CODE.findall(rest)) > 2
    ):
        return None
    question = f"Which {_noun(' '.join(before or after), name)} {rest}?"
    return Draft("name", question, name, statement, "", _called(name))


def _numbers(statement: Statement) -> Iterator[Draft]:
    if not _reads_alone(statement.text, statement.kind):
        return
    matches = [m for m in _NUMBER.finditer(statement.text) if m["number"] not in ("0", "1")]
    if len(matches) != 1 or len(re.findall(r"\d+", _CODE.sub("", statement.text))) > 2:
        return
    (match,) = matches
    text = statement.text
    left = f"{text[: match.start('number')]}{BLANK}{text[match.end('number') :]}"
    answer = _number_text(match)
    if text.count(match["number"]) == 1:
        if _FINITE.fullmatch(match["unit"]) or re.search(r"[A-Z]\w*\s$", text[: match.start()]):
            return
        if ": " in text[match.end() :]:  # what is counted follows
            return
        if re.search(r"(?:exceed|at least|more than|over) $", text[: match.start()]):  # than 16 if than 32
            return
        question = f"Fill in the number: “{left}”"
        yield Draft("number", question, answer, statement, f"number {_unit(match)}", (match["number"],))


def _left_out(statement: Statement, terms: Mapping[str, str]) -> Iterator[Draft]:
    """A key term left out of a sentence."""
    text = statement.text
    if not _reads_alone(text, statement.kind) or not _is_known_subject(text, terms):
        return
    if _FIGURE.search(_NOT_FIGURES.sub(" ", text)):  # then the number is what matters
        return
    held = [
        (start, end)
        for start, end, _ in _word_runs(text)
        if text[start:end].lower() in terms and text.count("`", 0, start) % 2 == 0
    ]
    for start, end in sorted(held, key=lambda place: (place[0] - place[1], place[0]))[:3]:
        said = text[start:end]
        answer = _uncapital(said) if not start and terms[said.lower()][0].islower() else said
        if _is_part_of_name(text, start, end) or not _leaves_enough(text, start, end):
            continue
        pair = re.match(r" (?:and|or) (\w+)", text[end:])
        if pair is not None and (pair[1][0].isupper() or pair[1] in terms):  # its pair would tell
            continue
        spelled = " " in answer and _initials(answer.split()) in text  # `called SMs` would tell
        if _NOUN_ENDS.match(text, end) is None or spelled:
            continue
        yield _cloze(statement, start, end, answer)
        return


def _is_known_subject(text: str, terms: Mapping[str, str]) -> bool:
    """Whether what a sentence begins with as `The …` is a term: another thing is one that the text before has named."""
    match = _THE_SUBJECT.match(text)
    if match is None:
        return True
    words = match["phrase"].split()
    return any(" ".join(words[first:]) in terms for first in range(len(words)))


def _subject(statement: Statement, terms: Mapping[str, str]) -> Draft | None:
    """What a sentence is about, asked for by what it says of it: 'What distributes iterations over threads?'."""
    match = _SUBJECT_PHRASE.match(statement.text)
    if match is None or not _reads_alone(statement.text, statement.kind):
        return None
    phrase, article, verb, rest = match["phrase"], match["article"], match["verb"], match["rest"].rstrip(".")
    lower = phrase.lower()
    if not _is_term(phrase) or (article == "The" and lower not in terms and lower == phrase):
        return None
    if _ADJECTIVE.fullmatch(lower.split()[-1]) or (_BEGINS_WITH_VERB.match(phrase) and not _STREAMING.match(phrase)):
        return None
    if not _leaves_enough(statement.text, *match.span("phrase")) or not _fits(rest, phrase):
        return None
    answer = phrase if article else _as_used(phrase, terms)
    plural, singular = term_class(answer).endswith("s"), verb in ("is", "has", "does") or verb.endswith("s")
    if plural == singular and verb not in _MODALS:
        return None  # the options' number would tell
    return _cloze(statement, *match.span("phrase"), answer)


def _cloze(statement: Statement, start: int, end: int, answer: str) -> Draft:
    text = statement.text
    before = re.sub(r"\b([Aa])n? $", r"\1(n) ", text[:start])
    return Draft("term", f"Fill in the term: “{before}{BLANK}{text[end:]}”", answer, statement, term_class(answer))


def _leaves_enough(text: str, start: int, end: int) -> bool:
    """Whether the rest of a sentence says much, and nothing of what was left out."""
    rest = terms_of(f"{text[:start]} {text[end:]}")
    return not terms_of(text[start:end]).pieces & rest.pieces and len(rest.pieces) >= _LEAST_LEFT


def _is_part_of_name(text: str, start: int, end: int) -> bool:
    """Whether a capital word before or after makes the term part of a longer name."""
    after = re.match(r"\s+(?:[A-Z]|`|\()", text[end:])
    before = re.search(r"(?:[A-Z][\w\-]*|`)\s$", text[:start])
    return after is not None or (before is not None and (text[start].isupper() or before[0] == "` "))


# --- helpers


def _as_used(term: str, terms: Mapping[str, str]) -> str:
    """A term from the beginning of a sentence, with a capital only where the book writes it so elsewhere."""
    used = terms.get(term.lower(), term)
    return _uncapital(term) if used[0].islower() else term


def _with_headings(draft: Draft) -> Draft:
    """The draft with the last two headings over its sentence, without those that say nothing or hold the answer."""
    answer, said = terms_of(draft.answer).pieces, terms_of(draft.question).stems
    shown = []
    for heading in dict.fromkeys(draft.statement.node.heading_path[-2:]):
        plain = re.sub(r"^\d[\d.]*\s+", "", _plain(heading)).strip(" :.")
        subject = terms_of(_TITLE_IDLE.sub(" ", plain))
        new = subject.stems and not subject.stems <= said
        told = terms_of(plain).pieces & answer or _initials(plain.split()) == draft.answer.removesuffix("s")
        if new and not told and count_words(plain) <= _HEADING_WORDS:
            shown.append(plain)
    return replace(draft, question=f"{draft.question} ({', '.join(shown)})") if shown else draft


def _fits(what: str, term: str, *, part: bool = False) -> bool:
    """Whether a description has the right length, does not give the term away, and refers to nothing outside.

    Args:
        part: it may hold a part of the term.
    """
    low, high = _PREDICATE_WORDS
    if not low <= count_words(what) <= high or _BAD_CHARACTERS.search(_CODE.sub("x", what)):
        return False
    if _SAYS_LITTLE.match(what):
        return False
    said, wanted = terms_of(what), terms_of(re.split(r"::|\.", term)[-1])
    told = wanted.stems <= said.stems if part else said.pieces & wanted.pieces
    if told or len(said.stems) < 3:
        return False
    return not _POINTS_ELSEWHERE.search(what)


def _is_title(term: str, node: StoredNode) -> bool:
    """Whether a term of several words holds a heading over it: then it is what the text calls itself."""
    headings = (heading for heading in node.heading_path if " " in heading.strip())
    return term.count(" ") > 1 and any(terms_of(heading).pieces <= terms_of(term).pieces for heading in headings)


def _describes(what: str) -> bool:
    """Whether an entry's text is one whole phrase or sentence."""
    first = what.split()[0].strip("`*(").lower()
    return first not in {"see", "this", "these", "it", "and", "or", "default", "defaults", "same"} and ". " not in what


def _kind_of_section(node: StoredNode) -> str:
    """What a section on environment variables names."""
    return "environment variable" if re.search("environment variable", " ".join(node.heading_path), re.I) else ""


def _noun(said: str | None, name: str) -> str:
    words = (said or "").split()
    if words and words[-1] == "call":
        return "function"
    if words and words[-1] in _NOUNS:
        return " ".join(words)
    by_form = name_noun(name)
    return "identifier" if by_form == "name" else by_form


def _called(name: str) -> tuple[str, ...]:
    """Other ways to write a name: without `()`, without its module."""
    bare = name.removesuffix("()").lstrip("@")
    last = re.split(r"::|\.", bare)[-1]
    return tuple(dict.fromkeys(text for text in (bare, last) if text != name and len(text) > 3))


def _in_sentence(text: str) -> str:
    first = text.split()[0]
    return _uncapital(text) if first[1:].islower() or first in ("A", "An") else text


def _uncapital(text: str) -> str:
    return text[:1].lower() + text[1:]


def _unit(match: re.Match[str]) -> str:
    unit = match["unit"]
    return unit.removesuffix("s") if len(unit) > 3 and not unit.endswith("/s") else unit


def _number_text(match: re.Match[str]) -> str:
    gap = match["gap"] or ""
    return f"{match['number']}{' ' if gap.isspace() else gap}{match['unit']}"
